"""What a check returns: an answer before the runner adds who asked, when and at what cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from syncguard.verdict import Coverage, Reason, Status

__all__ = ["Judgement", "counted", "failed", "listed", "not_run", "passed"]

_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class Judgement:
    """See `syncguard.verdict.Verdict` for the fields."""

    status: Status
    message: str
    reason: Reason | None = None
    subject: str = ""
    measured: float | None = None
    bound: float | None = None
    coverage: Coverage = field(default_factory=Coverage)
    evidence: tuple[tuple[str, str], ...] = ()


def passed(
    message: str,
    coverage: Coverage,
    *,
    measured: float | None = None,
    bound: float | None = None,
    evidence: Iterable[tuple[str, str]] = (),
) -> Judgement:
    """What was asked holds for what was covered."""
    return Judgement(
        Status.PASS,
        message,
        measured=measured,
        bound=bound,
        coverage=coverage,
        evidence=tuple(evidence),
    )


def failed(
    message: str,
    coverage: Coverage,
    *,
    subject: str = "",
    measured: float | None = None,
    bound: float | None = None,
    evidence: Iterable[tuple[str, str]] = (),
) -> Judgement:
    """What was asked does not hold."""
    return Judgement(
        Status.FAIL,
        message,
        subject=subject,
        measured=measured,
        bound=bound,
        coverage=coverage,
        evidence=tuple(evidence),
    )


def not_run(
    reason: Reason,
    message: str,
    coverage: Coverage | None = None,
    *,
    evidence: Iterable[tuple[str, str]] = (),
) -> Judgement:
    """The question could not be answered."""
    return Judgement(
        Status.NOT_RUN,
        message,
        reason=reason,
        coverage=coverage or Coverage(),
        evidence=tuple(evidence),
    )


def counted(number: int, one: str, many: str) -> str:
    """A number and what it counts, such as ``1 layer differs`` or ``3 layers differ``."""
    return f"{number} {one if number == 1 else many}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: all of a few, the first of many and the count of the rest."""
    shown = ", ".join(names[:_LISTED])
    rest = len(names) - _LISTED
    return f"{shown} and {rest} more" if rest > 0 else shown
