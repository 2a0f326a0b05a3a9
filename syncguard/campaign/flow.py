"""The syncs that a cell or a healthy run consists of, with every check after each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from syncguard.campaign.places import Place
from syncguard.checks import CHECKS
from syncguard.guard import Guard
from syncguard.profiles import PROFILES, Profile
from syncguard.reporting import Broadcast
from syncguard.verdict import Verdict

__all__ = ["FLOWS", "Flow", "Syncs", "Turn"]

LEARNING_RATE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Turn:
    """One sync of a flow.

    Attributes:
        poison: Byte to fill the engine's weights with before; none leaves them.
        steps: Whether the learner takes an optimizer step before.
        repeats: Whether the weights are those of the sync before.
    """

    poison: int | None = None
    steps: bool = False
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """The syncs of a profile.

    Attributes:
        load: From the first sync of an engine on.
        late: After the first of `load`: nothing is poisoned, so stale values are almost right.
        last: What goes on from there, for as long as layers are probed in turn.
    """

    load: tuple[Turn, ...]
    late: tuple[Turn, ...]
    last: Turn

    def turns(self, stage: str, period: int) -> tuple[Turn, ...]:
        """The syncs of a cell.

        Args:
            stage: One of `syncguard.campaign.cell.STAGES`.
            period: Syncs within which every layer is probed.
        """
        return (*(self.late if stage == "late" else self.load), *[self.last] * (period - 1))


_AGAIN: Final = Turn(repeats=True)
_STEP: Final = Turn(steps=True)

FLOWS: Final[Mapping[str, Flow]] = MappingProxyType(
    {
        "production": Flow((Turn(), _STEP), (_STEP,), _STEP),
        "smoke": Flow(
            (Turn(poison=0xA5), Turn(poison=0x5A, steps=True), _AGAIN), (_STEP, _AGAIN), _STEP
        ),
    }
)
"""Profile to its syncs: those of `syncguard.smoke`, or a step before each and no poison."""


class Syncs:
    """Synchronizes the two sides of a place.

    Args:
        place: The two sides.
        checks: Names of the checks to run.
        timeout_s: Limit for each check.
        seed: Of prompts, sampling and probes.
        bucket_bytes: Gives the largest size of each sync's buckets.
        profile: How deep the probes go.
    """

    def __init__(
        self,
        place: Place,
        checks: Sequence[str],
        timeout_s: float,
        seed: int,
        bucket_bytes: Callable[[], int],
        profile: Profile = PROFILES["smoke"],
    ) -> None:
        self._place = place
        self._checks = [CHECKS[name] for name in checks]
        self._timeout_s = timeout_s
        self._seed = seed
        self._bucket_bytes = bucket_bytes
        self._profile = profile
        self._sides: tuple[Any, Any] | None = None

    def sync(self, turn: Turn) -> list[Verdict]:
        """Sync once; the verdicts of all checks."""
        world = self._place.world
        if turn.steps:
            world.learner.step(LEARNING_RATE)
        _, verdicts = self._current_guard().sync(
            bucket_bytes=self._bucket_bytes(),
            poison=turn.poison,
            same_weights=turn.repeats,
            start_cold=self._place.start_cold,
        )
        return verdicts

    def _current_guard(self) -> Guard:
        # A fault that starts a side again may put another object in its place.
        world = self._place.world
        sides = world.learner, world.engine
        if self._sides is None or any(a is not b for a, b in zip(sides, self._sides, strict=True)):
            self._sides = sides
            self._guard = Guard(
                *sides,
                Broadcast([]),
                profile=self._profile,
                checks=self._checks,
                timeout_s=self._timeout_s,
                vocabulary=self._place.vocabulary,
                seed=self._seed,
            )
        return self._guard
