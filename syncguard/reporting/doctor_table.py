"""The findings of ``syncguard doctor`` as a table."""

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncguard.doctor import Finding, State, can_smoke
from syncguard.report import ExitCode

__all__ = ["doctor_table"]

_STYLES: Final = {State.READY: "green", State.LIMITED: "yellow", State.MISSING: "red"}


def doctor_table(findings: Sequence[Finding]) -> RenderableType:
    """What can be checked and what not; below, what it means for ``syncguard smoke``."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("for", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    for finding in findings:
        state = finding.state
        told = "; ".join(filter(None, (finding.found, finding.why)))
        cell = Text(told)
        if finding.todo:
            cell.append(f"\nnext: {finding.todo}", "bold")
        table.add_row(finding.topic, finding.name, Text(state, _STYLES[state]), cell)
    return Group(table, "", _closing(findings))


def _closing(findings: Sequence[Finding]) -> Text:
    if can_smoke(findings):
        text, style, code = "`syncguard smoke` can run here", "green", ExitCode.PASSED
    else:
        missing = ", ".join(each.name for each in findings if each.needed and _missing(each))
        text, style, code = f"`syncguard smoke` needs: {missing}", "red", ExitCode.NOT_CHECKED
    return Text.assemble((text, style), f"; exit code {code.value}")


def _missing(finding: Finding) -> bool:
    return finding.state is State.MISSING
