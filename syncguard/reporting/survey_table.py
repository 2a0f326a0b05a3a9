"""The result of a survey as text: the matrix, then what fails and what did not run."""

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from syncguard._version import __version__
from syncguard.conditions import CONDITIONS, CORE_CONDITIONS
from syncguard.report import ExitCode
from syncguard.survey.findings import FINDINGS
from syncguard.survey.result import CellResult, SurveyResult, Told
from syncguard.verdict import Status

__all__ = ["EXTENSIONS", "MEANINGS", "mark", "render_survey", "worst_extension"]

MEANINGS: Final = {
    ExitCode.PASSED: "every cell passed",
    ExitCode.VIOLATED: "a condition is violated in some cell",
    ExitCode.NOT_CHECKED: "a cell could not be run",
    ExitCode.INTERRUPTED: "interrupted; the table holds what was found until then",
}
"""What the exit codes of a survey mean."""

EXTENSIONS: Final = tuple(name for name, condition in CONDITIONS.items() if not condition.core)
"""Conditions that share one column."""

_MARKS: Final = {
    Status.PASS: Text("pass", "green"),
    Status.NOT_RUN: Text("open", "yellow"),
    Status.FAIL: Text("FAIL", "bold red"),
}
_NAMED: Final = 3


def render_survey(result: SurveyResult) -> RenderableType:
    """A survey as rich shows it."""
    versions = ", ".join(f"{name} {version}" for name, version in result.environment.items())
    return Group(
        Text(f"syncguard {__version__}", "bold"),
        Text(versions),
        "",
        _matrix(result),
        "",
        *(_failing(cell) for cell in result.of(Status.FAIL)),
        *(_open(cell) for cell in result.of(Status.NOT_RUN)),
        *(_noted(cell) for cell in result.cells if cell.cell.note),
        _closing(result),
    )


def mark(told: Told) -> Text:
    """What a condition came to, in one word."""
    return _MARKS[told.status] if told.applicable else Text("n/a", "dim")


def worst_extension(cell: CellResult) -> Told:
    """The worst of the conditions that share a column, of those that apply."""
    applied = [cell.told[name] for name in EXTENSIONS if cell.told[name].applicable]
    return max(applied, key=lambda told: told.status.severity, default=cell.told[EXTENSIONS[0]])


def _matrix(result: SurveyResult) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("configuration", overflow="fold")
    for condition in CORE_CONDITIONS:
        table.add_column(condition.id, no_wrap=True)
    table.add_column("C8+", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("MiB", justify="right", no_wrap=True)
    for cell in result.cells:
        table.add_row(
            cell.cell.name,
            *(mark(cell.told[condition.id]) for condition in CORE_CONDITIONS),
            mark(worst_extension(cell)),
            f"{cell.seconds:.0f}" if cell.seconds else "-",
            f"{cell.peak_mib:.0f}" if cell.peak_mib else "-",
        )
    return table


def _failing(cell: CellResult) -> RenderableType:
    finding = FINDINGS.get(cell.cell.finding)
    heading = Text.assemble(("FAIL ", "bold red"), (cell.cell.name, "bold"))
    lines: list[RenderableType] = [heading]
    for name in cell.failing:
        told = cell.told[name]
        named = ", ".join(told.subjects[:_NAMED]) or "the whole model"
        more = len(told.subjects) - _NAMED
        rest = f" and {more} more" if more > 0 else ""
        first = told.text.partition("\n")[0]
        lines.append(Padding(Text(f"{name} {named}{rest}: {first}"), (0, 0, 0, 2)))
    if finding is not None and cell.known:
        what = f"known: {finding.title}; syncguard survey --repro {cell.cell.name}"
    else:
        what = "not known: decide with another instrument whether check or engine is wrong"
    lines.append(Padding(Text(what), (0, 0, 1, 2)))
    return Group(*lines)


def _open(cell: CellResult) -> RenderableType:
    heading = Text.assemble(("not run ", "yellow"), (cell.cell.name, "bold"))
    reasons = [cell.error] if cell.error else list(dict.fromkeys(_reasons(cell)))
    return Group(heading, *(Padding(Text(why), (0, 0, 1, 2)) for why in reasons))


def _noted(cell: CellResult) -> RenderableType:
    heading = Text.assemble(("note ", "dim"), (cell.cell.name, "bold"))
    return Group(heading, Padding(Text(cell.cell.note), (0, 0, 1, 2)))


def _reasons(cell: CellResult) -> Iterator[str]:
    for name, told in cell.told.items():
        if told.status is Status.NOT_RUN and told.applicable:
            yield f"{name}: {told.text}"


def _closing(result: SurveyResult) -> Text:
    failing = result.of(Status.FAIL)
    known = sum(cell.known for cell in failing)
    told = (
        f"{len(result.cells)} cells in {result.seconds:.0f} s: {len(result.of(Status.PASS))} pass, "
        f"{len(failing)} fail ({known} of them by known findings), "
        f"{len(result.of(Status.NOT_RUN))} not run\n"
        f"exit code {int(result.exit_code)}: {MEANINGS[result.exit_code]}"
    )
    return Text(told)
