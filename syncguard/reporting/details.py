"""Verdicts in full: what, where, expected and got, likely cause, what to do."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from syncguard.conditions import CONDITIONS
from syncguard.reporting import numbers
from syncguard.reporting.table import word
from syncguard.verdict import Status, Verdict

__all__ = ["details"]

_LABELLED: Final = re.compile(r"  (where|expected|got|likely cause|what to do): (.*)")
_NUMBER: Final = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")


def details(verdicts: Iterable[Verdict]) -> Iterator[RenderableType]:
    """Each failure, then each check that did not run although it applies, in full.

    Verdicts that differ only in the sync and in numbers are shown once, with all syncs.
    """
    bad = [verdict for verdict in verdicts if verdict.counts and verdict.status is not Status.PASS]
    alike: dict[tuple[object, ...], list[Verdict]] = {}
    for verdict in sorted(bad, key=_order):
        alike.setdefault((*_order(verdict), _NUMBER.sub("0", verdict.message)), []).append(verdict)
    yield from map(_block, alike.values())


def _order(verdict: Verdict) -> tuple[int, int, str, str]:
    condition = tuple(CONDITIONS).index(verdict.condition)
    return -verdict.status.severity, condition, verdict.check, verdict.subject


def _block(alike: list[Verdict]) -> RenderableType:
    verdict = alike[0]
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    first, *rest = verdict.message.splitlines() or ["(the check gave no message)"]
    for line in rest:
        match = _LABELLED.fullmatch(line)
        rows.add_row(*map(Text, match.groups() if match else ("", line.strip())))
    if verdict.measured is not None:
        rows.add_row("measured", _measured(verdict))
    for name, value in verdict.evidence:
        rows.add_row("evidence", Text(f"{name}: {value}"))
    for other in alike[1:]:
        if (other.measured, other.bound) != (verdict.measured, verdict.bound):
            rows.add_row(f"at sync {other.sync}", _measured(other))
    return Group(_head(alike), Padding(Group(Text(first), rows), (0, 0, 1, 2), expand=False))


def _measured(verdict: Verdict) -> str:
    bound = "" if verdict.bound is None else f" (bound {numbers.real(verdict.bound)})"
    return numbers.real(verdict.measured) + bound


def _head(alike: list[Verdict]) -> Text:
    verdict = alike[0]
    condition = CONDITIONS[verdict.condition]
    head = Text.assemble(word(verdict.status), " ", (f"{condition.id} {condition.name}", "bold"))
    told = [verdict.check, verdict.subject, verdict.reason and verdict.reason.replace("_", " ")]
    syncs = sorted({each.sync for each in alike})
    numbered = ", ".join(str(number) for number in syncs)
    told.append(f"{'sync' if len(syncs) == 1 else 'syncs'} {numbered}")
    return head.append("".join(f" | {part}" for part in told if part))
