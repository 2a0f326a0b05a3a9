"""The table of conditions: one line each."""

import itertools
from typing import Final

from rich.table import Table
from rich.text import Text

from syncguard.reporting import numbers
from syncguard.summary import Summary
from syncguard.verdict import Status

__all__ = ["STYLES", "condition_table", "word"]

STYLES: Final = {Status.PASS: "green", Status.NOT_RUN: "yellow", Status.FAIL: "bold red"}
"""Colour of a status; words say the same, so nothing is lost without colours."""

_WORDS: Final = {Status.PASS: "pass", Status.NOT_RUN: "not run", Status.FAIL: "FAIL"}


def word(status: Status) -> Text:
    """A status as readers see it."""
    return Text(_WORDS[status], STYLES[status])


def condition_table(summaries: tuple[Summary, ...]) -> Table:
    """One line per condition: worst verdict, coverage, the most telling measurement, cost.

    The seven published conditions come first, and extensions apart.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("condition", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for heading in ("layers", "bytes", "measured", "bound", "cost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for core, group in itertools.groupby(summaries, key=lambda summary: summary.condition.core):
        if not core:
            table.add_row()
        for summary in group:
            table.add_row(*_row(summary))
    return table


def _row(summary: Summary) -> tuple[Text | str, ...]:
    telling, coverage = summary.telling, summary.coverage
    name = f"{summary.condition.id} {summary.condition.name}"
    if telling is None:
        return name, Text("silent", STYLES[Status.NOT_RUN]), *("-" * 5)
    return (
        name,
        word(summary.status) if summary.applicable else Text("n/a", "dim"),
        f"{coverage.layers_checked}/{coverage.layers_total}" if coverage.layers_total else "-",
        numbers.bytes_of(coverage.bytes_checked, coverage.bytes_total)
        if coverage.bytes_total
        else "-",
        numbers.real(telling.measured),
        numbers.real(telling.bound),
        numbers.seconds(summary.cost_s),
    )
