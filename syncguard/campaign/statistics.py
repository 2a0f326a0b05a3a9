"""What the cells say of each check and of each fault."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from syncguard.campaign.cell import Cell, Outcome
from syncguard.campaign.healthy import HealthyRun
from syncguard.checks import CHECKS
from syncguard.conditions import CONDITIONS
from syncguard.runner import OBSERVABILITY

__all__ = ["CheckRow", "FaultRow", "Interval", "check_rows", "condition_of", "fault_rows", "wilson"]

Interval = tuple[float, float]


@cache
def wilson(successes: int, trials: int) -> Interval:
    """The 95 % Wilson score interval of a rate; all of 0 to 1 without a trial."""
    if not trials:
        return 0.0, 1.0
    from scipy.stats import binomtest

    interval = binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check over all cells.

    Attributes:
        check: Its name.
        condition: The condition that it judges.
        reference: Whether it is a published instrument, kept for comparison.
        claimed: Cells of faults that it claims and that fired.
        detected: Those of them in which it failed.
        seen: All cells in which it failed.
        alone: Faults with a cell that it alone detected.
        alarms: Healthy runs in which it alarmed.
        runs: Healthy runs.
    """

    check: str
    condition: str
    reference: bool
    claimed: int
    detected: int
    seen: int
    alone: tuple[str, ...]
    alarms: int
    runs: int

    @property
    def rate(self) -> float | None:
        """Share of the claimed cells that it detected; none if it claims none."""
        return self.detected / self.claimed if self.claimed else None


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault over its cells.

    Attributes:
        fault: Its name.
        breaks: Conditions that it violates.
        cells: Its cells.
        seen_by: Check to the number of cells in which it failed; those that claim the fault come
            first, then the busiest.
    """

    fault: str
    breaks: tuple[str, ...]
    cells: tuple[Cell, ...]
    seen_by: dict[str, int]

    @property
    def detected(self) -> int:
        """Cells in which it was detected in time."""
        return sum(cell.detected for cell in self.cells)

    @property
    def syncs(self) -> int | None:
        """The most syncs that its detection took; none if it was never detected."""
        counts = [cell.syncs_to_detect for cell in self.cells]
        return max((count for count in counts if count), default=None)

    @property
    def outcome(self) -> Outcome:
        """The worst of its cells' outcomes."""
        return max((cell.outcome for cell in self.cells), key=_BADNESS.index)


_BADNESS = (
    Outcome.EQUIVALENT,
    Outcome.DETECTED,
    Outcome.NOT_FIRED,
    Outcome.ERROR,
    Outcome.DELAYED,
    Outcome.SURVIVED,
)


def check_rows(
    checks: Sequence[str], cells: Sequence[Cell], healthy: Sequence[HealthyRun]
) -> list[CheckRow]:
    """A row for every check that ran, and for the runner's own verdict, by condition."""
    rows = [_check_row(name, cells, healthy) for name in (*checks, OBSERVABILITY)]
    return sorted(rows, key=lambda row: list(CONDITIONS).index(row.condition))


def fault_rows(cells: Iterable[Cell]) -> list[FaultRow]:
    """A row for every fault: survivors first, then by the condition that it breaks."""
    grouped: dict[str, list[Cell]] = {}
    for cell in cells:
        grouped.setdefault(cell.spec.fault, []).append(cell)
    rows = []
    for name, group in grouped.items():
        seen: dict[str, int] = {}
        for cell in group:
            for check in cell.seen_at:
                seen[check] = seen.get(check, 0) + 1
        claims = group[0].claimed_by
        ordered = dict(sorted(seen.items(), key=lambda item: (item[0] not in claims, -item[1])))
        rows.append(FaultRow(name, group[0].breaks, tuple(group), ordered))
    conditions = list(CONDITIONS)
    return sorted(
        rows, key=lambda row: (-_BADNESS.index(row.outcome), conditions.index(row.breaks[0]))
    )


def condition_of(check: str) -> str:
    """The condition that a check, or the runner, judges."""
    return "C7" if check == OBSERVABILITY else CHECKS[check].condition


def _check_row(name: str, cells: Sequence[Cell], healthy: Sequence[HealthyRun]) -> CheckRow:
    claimed = [cell for cell in cells if name in cell.claimed_by and _counts(cell)]
    reference = name in CHECKS and CHECKS[name].reference
    return CheckRow(
        check=name,
        condition=condition_of(name),
        reference=reference,
        claimed=len(claimed),
        detected=sum(name in cell.seen_at for cell in claimed),
        seen=sum(name in cell.seen_at for cell in cells),
        alone=tuple(
            dict.fromkeys(cell.spec.fault for cell in cells if cell.detected_by == (name,))
        ),
        alarms=sum(
            name in (run.references if reference else [alarm.check for alarm in run.alarms])
            for run in healthy
        ),
        runs=len(healthy),
    )


def _counts(cell: Cell) -> bool:
    return cell.outcome in (Outcome.DETECTED, Outcome.DELAYED, Outcome.SURVIVED)
