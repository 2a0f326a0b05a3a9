"""The report as text, for a terminal or a file."""

import io
from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncguard._version import __version__
from syncguard.conditions import CONDITIONS
from syncguard.report import Environment, Report, SyncSummary, exit_code
from syncguard.reporting import numbers
from syncguard.reporting.details import details
from syncguard.reporting.table import STYLES, condition_table, word
from syncguard.verdict import Status

__all__ = ["HEADING", "plain_text", "render"]

HEADING: Final = "syncguard "
"""How the text of every report begins."""

_FILE_WIDTH: Final = 100
_CONDITIONS: Final = tuple(CONDITIONS)


def render(report: Report, strict: bool = False) -> RenderableType:
    """A report as rich shows it: environment, syncs, conditions, failures in full, exit code.

    Args:
        report: The report.
        strict: As for `syncguard.report.exit_code`.
    """
    return Group(
        Text(HEADING + __version__, "bold"),
        _environment(report.environment),
        "",
        *(_sync(sync) for sync in report.syncs),
        "",
        condition_table(report.summaries),
        "",
        *details(report.verdicts),
        *(Text(f"note: {note}") for note in report.notes),
        *_gaps(report),
        _closing(report, strict),
    )


def plain_text(report: Report, strict: bool = False) -> str:
    """A report as plain text of at most 100 columns."""
    out = io.StringIO()
    console = Console(file=out, width=_FILE_WIDTH, color_system=None, legacy_windows=False)
    console.print(render(report, strict), highlight=False)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _environment(environment: Environment) -> Table:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold", style="dim")
    plain = {name: value for name, value in environment.items() if isinstance(value, str)}
    nested = {name: value for name, value in environment.items() if isinstance(value, Mapping)}
    for name, values in {"run": plain, **nested}.items():
        if values:
            rows.add_row(Text(name), Text(" | ".join(_flat(values))))
    return rows


def _flat(environment: Environment, within: str = "") -> Iterator[str]:
    for name, value in environment.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name} ")
        else:
            yield f"{within}{name} {value}"


def _sync(sync: SyncSummary) -> Text:
    line = Text(f"sync {sync.number}: {sync.what or 'weights'}", "bold")
    if sync.error:
        return line.append(f": failed: {sync.error}", STYLES[Status.FAIL])
    size = numbers.bytes_of(sync.bytes, sync.bytes).partition("/")[2]
    told = (
        f": {_count(sync.tensors, 'tensor')}, {size} in {_count(sync.buckets, 'bucket')}, "
        f"{numbers.seconds(sync.seconds)}; serves version {sync.served_version or 'unknown'}"
    )
    line.append(told, "not bold")
    if sync.served_version != sync.version:
        line.append(f", asked for {sync.version}", STYLES[Status.NOT_RUN])
    line.append(f"; checks {numbers.seconds(sync.checks_s)}", "not bold")
    if (step := sync.step) is not None:
        line.append(
            f"; the step (learning rate {step.learning_rate:g}, loss {step.loss:.3g}) changed "
            f"{step.weights_changed:.0%} of weights, {step.elements_changed:.1%} of element bytes, "
            f"{step.scales_changed:.1%} of scale bytes",
            "not bold",
        )
    return line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _gaps(report: Report) -> Iterator[Text]:
    for summary in report.summaries:
        if summary.gap:
            yield Text(
                f"not covered: {summary.condition.id}: {summary.gap}", STYLES[Status.NOT_RUN]
            )


def _closing(report: Report, strict: bool) -> Text:
    code = exit_code(report, strict)
    by_status = {
        status: [
            summary.condition.id
            for summary in report.summaries
            if summary.status is status and (summary.applicable or summary.telling is None)
        ]
        for status in Status
    }
    told = "; ".join(
        f"{text} {', '.join(by_status[status])}"
        for status, text in (
            (Status.FAIL, "violated:"),
            (Status.NOT_RUN, "not checked:"),
            (Status.PASS, "passed:"),
        )
        if by_status[status]
    )
    shown = {summary.condition.id for summary in report.summaries if summary.applicable}
    silent = {verdict.condition for verdict in report.verdicts} - shown
    if silent:
        told += f"; does not apply: {', '.join(sorted(silent, key=_CONDITIONS.index))}"
    interrupted = "interrupted; " if report.interrupted else ""
    return Text.assemble(
        word(report.status),
        f"  {interrupted}{told or 'nothing was checked'}\nexit code {code.value}: {code.meaning}",
    )
