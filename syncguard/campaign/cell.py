"""One cell of the detection matrix: a fault at a site, and what the checks made of it."""

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["STAGES", "Cell", "CellSpec", "Outcome"]

STAGES: Final = ("load", "late")
"""When a fault is armed: before the first sync, or after a healthy one and before a small step."""


@dataclass(frozen=True, slots=True)
class CellSpec:
    """What a cell runs.

    Attributes:
        fault: Name of the fault.
        site: Where it is armed.
        stage: One of `STAGES`.
        engine: One of `syncguard.campaign.places.ENGINES`.
        seed: Of weights, buckets, prompts and probes.
    """

    fault: str
    site: str
    stage: str
    engine: str
    seed: int

    @property
    def key(self) -> str:
        """What a session file knows the cell by."""
        return f"cell {self.engine} {self.fault}@{self.site} {self.stage} {self.seed}"


class Outcome(enum.StrEnum):
    """What a cell proves."""

    DETECTED = "detected"  # at the first sync in which the fault fired, or within a rotation
    DELAYED = "delayed"  # at a later one
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"  # not detected, and nothing that is served changes
    NOT_FIRED = "not_fired"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a cell.

    Attributes:
        spec: What was run.
        breaks: Conditions that the fault violates.
        claimed_by: Checks that say they see it.
        fired: How often the fault changed something.
        within: Syncs, from the first on in which it fired, within which the profile probes every
            layer: 1 where all are probed at each sync.
        seen_at: Check to the sync at which it first failed, counted from the first sync in which
            the fault fired, which is 1; references included.
        detected_by: Checks that failed at the earliest such sync; without references.
        evidence: Check to the text of its first failure.
        reached: Checks that gave an answer, or said why they could not, after the first firing.
        not_run: Check to why it gave no answer.
        equivalent: Why the fault changes nothing that is served, if it does so somewhere.
        error: Why the cell could not be run to its end; empty if it was.
        replay: The command line that repeats the cell.
        cost_s: Seconds that it took.
    """

    spec: CellSpec
    breaks: tuple[str, ...] = ()
    claimed_by: tuple[str, ...] = ()
    fired: int = 0
    within: int = 1
    seen_at: Mapping[str, int] = field(default_factory=dict)
    detected_by: tuple[str, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)
    reached: tuple[str, ...] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)
    equivalent: str = ""
    error: str = ""
    replay: str = ""
    cost_s: float = 0.0

    @property
    def syncs_to_detect(self) -> int | None:
        """1 if it was detected at the first sync in which the fault fired; none if never."""
        return self.seen_at[self.detected_by[0]] if self.detected_by else None

    @property
    def detected(self) -> bool:
        """Whether it was detected at the first sync in which it fired, or within the rotation."""
        return self.syncs_to_detect is not None and self.syncs_to_detect <= self.within

    @property
    def outcome(self) -> Outcome:
        """What the cell proves."""
        if self.detected_by:
            return Outcome.DETECTED if self.detected else Outcome.DELAYED
        if self.error:
            return Outcome.ERROR
        if self.equivalent:
            return Outcome.EQUIVALENT
        return Outcome.SURVIVED if self.fired else Outcome.NOT_FIRED

    def to_dict(self) -> dict[str, Any]:
        """The cell as JSON values, as ``schemas/campaign-1.json`` describes them."""
        return {
            **asdict(self.spec),
            "breaks": list(self.breaks),
            "claimed_by": list(self.claimed_by),
            "fired": self.fired,
            "within": self.within,
            "outcome": self.outcome.value,
            "detected": self.detected,
            "detected_by": list(self.detected_by),
            "syncs_to_detect": self.syncs_to_detect,
            "seen_at": dict(self.seen_at),
            "evidence": dict(self.evidence),
            "reached": list(self.reached),
            "not_run": dict(self.not_run),
            "equivalent": self.equivalent,
            "error": self.error,
            "replay": self.replay,
            "cost_s": round(self.cost_s, 4),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Cell":
        """The inverse of `to_dict`, for an object that satisfies the schema."""
        return cls(
            spec=CellSpec(*(value[name] for name in ("fault", "site", "stage", "engine", "seed"))),
            breaks=tuple(value["breaks"]),
            claimed_by=tuple(value["claimed_by"]),
            fired=value["fired"],
            within=value["within"],
            seen_at=value["seen_at"],
            detected_by=tuple(value["detected_by"]),
            evidence=value["evidence"],
            reached=tuple(value["reached"]),
            not_run=value["not_run"],
            equivalent=value["equivalent"],
            error=value["error"],
            replay=value["replay"],
            cost_s=value["cost_s"],
        )
