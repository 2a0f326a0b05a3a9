"""The result of a campaign as one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from syncguard.campaign.cell import Cell, Outcome
from syncguard.campaign.result import CampaignResult
from syncguard.campaign.statistics import CheckRow, FaultRow, wilson
from syncguard.conditions import CONDITIONS
from syncguard.faults import FAULTS
from syncguard.files import write_atomically
from syncguard.reporting.campaign_table import OUTCOMES, meaning, percent_interval
from syncguard.reporting.pages import rendered

__all__ = ["is_page", "page", "write_page"]

_MARK: Final = "<!-- syncguard campaign -->"
_TEMPLATE: Final = "campaign.html.j2"


@dataclass(frozen=True, slots=True)
class Square:
    """One square of the matrix.

    Attributes:
        check: Its column.
        kind: What it is drawn as, one of `_SYMBOLS`.
        symbol: A character that says the same without colour.
        title: The same in words.
    """

    check: str
    kind: str
    symbol: str
    title: str


_SYMBOLS: Final = {
    "claimed": "●",  # and sees it in every cell
    "all": "○",
    "some": "◐",
    "missed": "✕",
    "none": "·",
    "unreached": "",
}


def page(result: CampaignResult) -> str:
    """The page, with styles, script and data inside; it asks nothing of the network."""
    checks = result.check_rows
    conditions = {
        name: CONDITIONS[name].name
        for name in CONDITIONS
        if any(name in row.breaks for row in result.fault_rows)
    }
    return rendered(
        _TEMPLATE,
        mark=_MARK,
        result=result,
        meaning=meaning(result),
        conditions=conditions,
        checks=checks,
        rows=[_row(row, result, checks) for row in result.fault_rows],
        cells=[cell.to_dict() for cell in result.cells],
        faults={row.fault: _about(row.fault) for row in result.fault_rows},
        outcomes={outcome.value: word for outcome, (word, _) in OUTCOMES.items()},
        symbols=_SYMBOLS,
        rates=[_rate(row) for row in checks],
        alarm_interval=percent_interval(wilson(len(result.alarms), len(result.healthy))),
    )


def write_page(result: CampaignResult, path: str | Path) -> None:
    """Write the page to a file: all of it, or nothing.

    Raises:
        UsageError: The path cannot be written, or holds something that is not such a page.
    """
    write_atomically(path, page(result), is_page)


def is_page(text: str) -> bool:
    """Whether a file's text is the page of a campaign."""
    return _MARK in text[:500]


def _row(row: FaultRow, result: CampaignResult, checks: Sequence[CheckRow]) -> dict[str, Any]:
    survived = row.outcome in (Outcome.SURVIVED, Outcome.DELAYED)
    broken = survived and bool(result.claims(row.cells[0]))
    return {
        "fault": row.fault,
        "breaks": row.breaks,
        "outcome": OUTCOMES[row.outcome][0] if broken or not survived else "unclaimed",
        "style": "bad" if broken else "odd" if row.outcome is not Outcome.DETECTED else "",
        "found": f"{row.detected}/{len(row.cells)}",
        "syncs": row.syncs or "-",
        "squares": [_square(row.cells, check.check) for check in checks],
    }


def _about(name: str) -> dict[str, Any]:
    known = FAULTS.get(name)
    return {
        "explanation": known.explanation if known else "",
        "met": list(known.met) if known else [],
        "links": [link for link in known.links if link.startswith("https://")] if known else [],
    }


def _square(cells: Sequence[Cell], check: str) -> Square:
    seen = sum(check in cell.seen_at for cell in cells)
    claims = check in cells[0].claimed_by
    if seen:
        kind = "some" if seen < len(cells) else "claimed" if claims else "all"
        title = f"{check} sees it in {seen} of {len(cells)} cells"
    elif claims:
        kind, title = "missed", f"{check} claims it and does not see it"
    elif any(check in cell.reached for cell in cells):
        kind, title = "none", f"{check} does not see it"
    else:
        kind, title = "unreached", f"{check} does not apply"
    return Square(check, kind, _SYMBOLS[kind], title + (" (claimed)" if claims and seen else ""))


def _rate(row: CheckRow) -> tuple[str, ...]:
    found = "-" if row.rate is None else f"{row.detected}/{row.claimed} = {row.rate:.0%}"
    interval = "-" if row.rate is None else percent_interval(wilson(row.detected, row.claimed))
    alarms = percent_interval(wilson(row.alarms, row.runs)) if row.runs else "-"
    return found, interval, str(row.seen), ", ".join(row.alone), f"{row.alarms}/{row.runs}", alarms
