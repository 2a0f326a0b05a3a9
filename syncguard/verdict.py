"""A check's answer, and how answers combine."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from syncguard.conditions import CONDITIONS

__all__ = ["Coverage", "Reason", "Status", "Verdict", "explain", "worst"]


class Status(enum.StrEnum):
    """What a check found; the order of severity is pass, not_run, fail."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    NOT_RUN = "not_run"
    FAIL = "fail"

    @property
    def severity(self) -> int:
        """0 for pass, 1 for not_run, 2 for fail."""
        return tuple(Status).index(self)


class Reason(enum.StrEnum):
    """Why a check did not run."""

    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    TIMEOUT = "timeout"
    MISSING_INPUT = "missing_input"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what exists was looked at.

    Attributes:
        layers_checked: Layers (learner weights) that were looked at.
        layers_total: Layers that the check is about.
        bytes_checked: Bytes that were looked at.
        bytes_total: Bytes that the check is about.

    Raises:
        ValueError: More was checked than there is, or a count is negative.
    """

    layers_checked: int = 0
    layers_total: int = 0
    bytes_checked: int = 0
    bytes_total: int = 0

    def __post_init__(self) -> None:
        for what in ("layers", "bytes"):
            checked, total = getattr(self, f"{what}_checked"), getattr(self, f"{what}_total")
            if not 0 <= checked <= total:
                raise ValueError(f"coverage: {checked} of {total} {what} checked is not possible")

    def __add__(self, other: "Coverage") -> "Coverage":
        """The coverage of two disjoint sets of layers."""
        return Coverage(
            self.layers_checked + other.layers_checked,
            self.layers_total + other.layers_total,
            self.bytes_checked + other.bytes_checked,
            self.bytes_total + other.bytes_total,
        )

    @property
    def complete(self) -> bool:
        """Whether every layer and every byte was looked at."""
        return self.layers_checked == self.layers_total and self.bytes_checked == self.bytes_total


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one check, for one sync (and one rank or parameter, if it says so).

    Attributes:
        condition: Identifier of the condition, ``C1`` and so on.
        check: Name of the check.
        status: What it found.
        message: What, where, expected and got, likely cause, what to do.
        reason: Why it did not run; given exactly if ``status`` is ``not_run``.
        subject: What it speaks of: a parameter, a rank, an expert; empty for the whole model.
        measured: The measured value, in the unit that the message names.
        bound: The largest value of ``measured`` that passes.
        coverage: How much was looked at.
        cost_s: Seconds that the check and its observations took.
        sync: Number of the sync, from 1; 0 before the first.
        evidence: Small named values that support the answer.

    Raises:
        ValueError: The condition is unknown, or ``reason`` does not fit ``status``.
    """

    condition: str
    check: str
    status: Status
    message: str = ""
    reason: Reason | None = None
    subject: str = ""
    measured: float | None = None
    bound: float | None = None
    coverage: Coverage = field(default_factory=Coverage)
    cost_s: float = 0.0
    sync: int = 0
    evidence: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.condition not in CONDITIONS:
            raise ValueError(
                f"unknown condition {self.condition!r}; known: {', '.join(CONDITIONS)}"
            )
        if (self.status is Status.NOT_RUN) != (self.reason is not None):
            raise ValueError(
                f"check {self.check!r}: a verdict has a reason exactly if it is not_run, "
                f"got status {self.status} with reason {self.reason}"
            )

    @property
    def counts(self) -> bool:
        """Whether the verdict takes part in the worst of a report."""
        return self.reason is not Reason.NOT_APPLICABLE


def worst(verdicts: Iterable[Verdict]) -> Status:
    """The worst status, in the order pass < not_run < fail.

    ``not_applicable`` verdicts do not worsen it; but if nothing else was said, nothing was
    checked, which is ``not_run``.
    """
    counted = [verdict.status for verdict in verdicts if verdict.counts]
    return max(counted, key=lambda status: status.severity, default=Status.NOT_RUN)


def explain(
    what: str,
    *,
    where: str = "",
    expected: str = "",
    got: str = "",
    cause: str = "",
    todo: str = "",
) -> str:
    """The text of a failure: one line a part, empty parts left out."""
    labelled = (
        ("where", where),
        ("expected", expected),
        ("got", got),
        ("likely cause", cause),
        ("what to do", todo),
    )
    return "\n".join([what, *(f"  {label}: {text}" for label, text in labelled if text)])
