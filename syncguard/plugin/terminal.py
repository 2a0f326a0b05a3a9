"""The section that pytest prints at the end of a run."""

import io

import pytest
from rich.console import Console

from syncguard.plugin.collecting import Collected
from syncguard.reporting.table import condition_table
from syncguard.verdict import Status

__all__ = ["show"]

_WIDTH = 80


def show(collected: Collected, reporter: pytest.TerminalReporter) -> None:
    """Print the table of conditions, what is not covered, remarks, and where the report is."""
    report = collected.report
    bad = report.status is not Status.PASS
    reporter.section("syncguard", sep="=", bold=True, red=bad, green=not bad)
    if report.verdicts:
        reporter.write_line(_table(collected, colours=reporter.hasmarkup))
    for summary in report.summaries:
        if report.verdicts and summary.gap:
            reporter.write_line(f"not covered: {summary.condition.id}: {summary.gap}")
    for note in report.notes:
        reporter.write_line(note)
    if collected.written:
        reporter.write_line(f"report: {collected.written}")
    if collected.error:
        reporter.write_line(f"ERROR: {collected.error}", red=True)


def _table(collected: Collected, *, colours: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out,
        width=_WIDTH,
        force_terminal=colours,
        color_system="standard" if colours else None,
        legacy_windows=False,
    )
    console.print(condition_table(collected.report.summaries), highlight=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
