"""What the verdicts of one condition come to, over all checks and syncs of a run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from syncguard.conditions import CONDITIONS, Condition
from syncguard.verdict import Coverage, Status, Verdict, worst

__all__ = ["Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class Summary:
    """One condition over a whole run.

    Attributes:
        condition: The condition.
        status: The worst status of its verdicts; ``not_run`` if none counts.
        telling: Its most telling verdict: of the worst status, and of those the one whose
            measured value comes closest to its bound or exceeds it the most. ``None`` if there is
            no verdict at all.
        coverage: What its widest check covered, in the sync where that was least.
        cost_s: Seconds that all of its checks took together.
    """

    condition: Condition
    status: Status
    telling: Verdict | None
    coverage: Coverage
    cost_s: float

    @property
    def applicable(self) -> bool:
        """Whether any of its checks applied to this run."""
        return self.telling is not None and self.telling.counts

    @property
    def gap(self) -> str:
        """What was left unchecked although nothing failed; empty if nothing was."""
        if self.telling is None:
            return "no check gave a verdict"
        if not self.applicable:
            return "none of its checks applies here"
        if not self.coverage.complete:
            checked, total = self.coverage.layers_checked, self.coverage.layers_total
            if checked < total:
                return f"{checked} of {total} layers checked"
            return f"{self.coverage.bytes_checked} of {self.coverage.bytes_total} bytes checked"
        return ""


def summarize(conditions: Iterable[str], verdicts: Sequence[Verdict]) -> tuple[Summary, ...]:
    """Sum up verdicts by condition.

    Args:
        conditions: Identifiers of the conditions that must appear; others follow if any of their
            checks applied.
        verdicts: The verdicts.
    """
    applied = (verdict.condition for verdict in verdicts if verdict.counts)
    named = dict.fromkeys([*conditions, *applied])
    return tuple(
        _one(CONDITIONS[name], [verdict for verdict in verdicts if verdict.condition == name])
        for name in sorted(named, key=tuple(CONDITIONS).index)
    )


def _one(condition: Condition, verdicts: Sequence[Verdict]) -> Summary:
    return Summary(
        condition,
        worst(verdicts),
        max(verdicts, key=_telling, default=None),
        _coverage(verdicts),
        math.fsum(verdict.cost_s for verdict in verdicts),
    )


def _telling(verdict: Verdict) -> tuple[int, float]:
    severity = verdict.status.severity if verdict.counts else -1
    if verdict.measured is None:
        return severity, -1.0
    if verdict.bound is None:
        return severity, 0.0
    if math.isnan(verdict.measured):
        return severity, math.inf
    if verdict.bound > 0:
        return severity, verdict.measured / verdict.bound
    return severity, math.inf if verdict.measured > verdict.bound else 0.0


def _coverage(verdicts: Iterable[Verdict]) -> Coverage:
    widest: dict[int, Coverage] = {}
    for verdict in verdicts:
        coverage = verdict.coverage
        if not verdict.counts or coverage == Coverage():
            continue  # not applicable, or not a check of layers
        if verdict.sync not in widest or _share(coverage) > _share(widest[verdict.sync]):
            widest[verdict.sync] = coverage
    return min(widest.values(), key=_share, default=Coverage())


def _share(coverage: Coverage) -> tuple[float, float, int, int]:
    return (
        coverage.layers_checked / (coverage.layers_total or 1),
        coverage.bytes_checked / (coverage.bytes_total or 1),
        coverage.layers_total,
        coverage.bytes_total,
    )
