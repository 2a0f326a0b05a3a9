"""The result of a campaign as text: survivors first, then faults, checks and healthy runs."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from syncguard._version import __version__
from syncguard.campaign.cell import Cell, Outcome
from syncguard.campaign.result import CampaignResult
from syncguard.campaign.statistics import CheckRow, FaultRow, Interval, wilson
from syncguard.report import ExitCode
from syncguard.reporting import numbers

__all__ = ["MEANINGS", "OUTCOMES", "meaning", "percent_interval", "render_campaign"]

MEANINGS: Final = {
    ExitCode.PASSED: "every claimed fault was detected at the first sync",
    ExitCode.VIOLATED: "a claimed fault survived the first sync, or a healthy run alarmed",
    ExitCode.INTERNAL: "cells that prove nothing: see above",
}
"""What the exit codes of a campaign mean."""

OUTCOMES: Final = {
    Outcome.DETECTED: ("found", "green"),
    Outcome.DELAYED: ("LATE", "bold red"),
    Outcome.SURVIVED: ("SURVIVED", "bold red"),
    Outcome.EQUIVALENT: ("equivalent", "dim"),
    Outcome.NOT_FIRED: ("not fired", "yellow"),
    Outcome.ERROR: ("error", "yellow"),
}
"""A word and a style for each outcome."""

_LISTED: Final = 20
_NAME: Final = 34
"""Columns for the longest name of a fault; the usual terminal has 80 in all."""


def render_campaign(result: CampaignResult) -> RenderableType:
    """A campaign as rich shows it.

    Args:
        result: The result.
    """
    return Group(
        Text(f"syncguard {__version__}", "bold"),
        _heading(result),
        "",
        *_listed(_survivor(cell) for cell in result.broken_claims),
        *_listed(_defect(cell, why) for cell, why in result.defects),
        *_tables(result),
        *_skipped(result),
        *_healthy(result),
        _closing(result),
    )


def meaning(result: CampaignResult) -> str:
    """What the exit code of a campaign means, with the syncs that its profile takes."""
    text, syncs = MEANINGS[result.exit_code], result.within
    if syncs == 1:
        return text
    rotation = f"{syncs} syncs, within which every layer is probed"
    return text.replace("at the first sync", f"within {rotation}").replace(
        "the first sync", rotation
    )


def _tables(result: CampaignResult) -> Iterator[RenderableType]:
    if result.cells:
        yield from (_fault_table(result), "")
    yield from (_check_table(result.check_rows), "")


def percent_interval(interval: Interval) -> str:
    """An interval of a rate in per cent, such as ``98.2-100``; never better than it is."""
    low, high = (100 * bound for bound in interval)
    return f"{int(low * 10) / 10:g}-{-int(-high * 10 // 1) / 10:g}"


def _heading(result: CampaignResult) -> Text:
    faults = len(result.fault_rows)
    told = [
        f"engine {result.engine}",
        f"profile {result.profile}",
        f"{len(result.cells)} cells of {faults} faults",
        f"{len(result.checks)} checks",
        f"{len(result.healthy)} healthy runs",
        *(f"{name} {version}" for name, version in result.environment.items()),
        numbers.seconds(result.seconds),
        *([f"{result.resumed} taken from an earlier try"] if result.resumed else []),
    ]
    return Text("campaign  " + " | ".join(told), "dim")


def _survivor(cell: Cell) -> RenderableType:
    spec = cell.spec
    word, style = OUTCOMES[cell.outcome]
    head = Text.assemble(
        (word, style), " ", (f"{' '.join(cell.breaks)} {spec.fault}", "bold"),
        f" | {spec.site} | {spec.stage} | seed {spec.seed}",
    )  # fmt: skip
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_row("claimed by", ", ".join(cell.claimed_by))
    rows.add_row("fired", f"{cell.fired} times")
    if cell.outcome is Outcome.DELAYED:
        late = _nth(cell.syncs_to_detect or 0)
        rows.add_row("found", f"only at {late} sync, by {', '.join(cell.detected_by)}")
    for check, why in cell.not_run.items():
        rows.add_row("not run", f"{check}: {' '.join(why.split())}")
    return Group(head, Padding(rows, (0, 0, 0, 2), expand=False), *_replay(cell.replay))


def _nth(number: int) -> str:
    return {2: "the second", 3: "the third"}.get(number, f"number {number}")


def _defect(cell: Cell, why: str) -> RenderableType:
    spec = cell.spec
    head = Text.assemble(
        ("PROVES NOTHING", "yellow"), " ", (spec.fault, "bold"),
        f" | {spec.site} | {spec.stage} | seed {spec.seed}: {why}",
    )  # fmt: skip
    return Group(head, *_replay(cell.replay))


def _replay(command: str) -> tuple[Text, str]:
    # In one piece, however long, so that it can be copied.
    return Text(f"  replay: {command}", no_wrap=True, overflow="ignore"), ""


def _listed(blocks: Iterable[RenderableType]) -> Iterator[RenderableType]:
    blocks = list(blocks)
    yield from blocks[:_LISTED]
    if len(blocks) > _LISTED:
        yield Text(f"and {len(blocks) - _LISTED} more: --json and --html hold them all\n")


def _plain_table() -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")


def _fault_table(result: CampaignResult) -> Table:
    rows = result.fault_rows
    table = _plain_table()
    width = min(_NAME, max(len(row.fault) for row in rows))
    table.add_column("fault", overflow="fold", min_width=width)
    table.add_column("breaks", overflow="fold", min_width=6)
    table.add_column("outcome", no_wrap=True)
    for heading in ("cells", "syncs"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("seen by", overflow="fold", style="dim")
    for row in rows:
        word, style = OUTCOMES[row.outcome]
        if row.outcome is Outcome.SURVIVED and not result.claims(row.cells[0]):
            word, style = "unclaimed", "yellow"
        table.add_row(
            row.fault,
            " ".join(row.breaks),
            Text(word, style),
            f"{row.detected}/{len(row.cells)}",
            numbers.real(row.syncs),
            _seen_by(row),
        )
    return table


def _seen_by(row: FaultRow) -> str:
    seen = [
        check if count == len(row.cells) else f"{check} ({count})"
        for check, count in row.seen_by.items()
    ]
    return " +".join([*seen[:1], *([str(len(seen) - 1)] if len(seen) > 1 else [])])


def _check_table(rows: Sequence[CheckRow]) -> Table:
    table = _plain_table()
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("claims", "found", "95 %", "sees", "alone", "alarms", "95 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        complete = row.detected == row.claimed
        table.add_row(
            Text(row.check, "dim" if row.reference else ""),
            row.condition,
            str(row.claimed),
            "-" if row.rate is None else Text(f"{row.rate:.0%}", "green" if complete else "red"),
            "-" if row.rate is None else percent_interval(wilson(row.detected, row.claimed)),
            str(row.seen),
            str(len(row.alone)),
            f"{row.alarms}/{row.runs}",
            percent_interval(wilson(row.alarms, row.runs)) if row.runs else "-",
        )
    return table


def _skipped(result: CampaignResult) -> Iterator[Text]:
    for fault, why in result.skipped.items():
        yield Text(f"skipped: {fault}: {why}", "dim")


def _healthy(result: CampaignResult) -> Iterator[RenderableType]:
    blocks: list[RenderableType] = []
    for run in result.alarms:
        told = [f"{alarm.check} after sync {alarm.sync}: {alarm.message}" for alarm in run.alarms]
        head = Text.assemble(("FALSE ALARM", "bold red"), f" {run.topology}")
        body = "\n".join([*filter(None, [run.error]), *told])
        padded = Padding(Text(body), (0, 0, 0, 2), expand=False)
        blocks.append(Group(head, padded, *_replay(run.replay)))
    yield from _listed(blocks)
    if runs := len(result.healthy):
        count = len(result.alarms)
        rate = percent_interval(wilson(count, runs))
        closing = f"healthy runs: {runs}, false alarms: {count} (95 %: {rate} %)"
        yield Text(closing, "bold red" if count else "green")


def _closing(result: CampaignResult) -> Text:
    code = result.exit_code
    return Text(f"exit code {code.value}: {meaning(result)}")
