"""The syncs that a cell or a healthy run consists of, with every check after each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from syncguard.campaign.places import Place
from syncguard.checks import CHECKS
from syncguard.guard import Guard
from syncguard.reporting import Broadcast
from syncguard.verdict import Verdict

__all__ = ["AGAIN", "ARMED_LATE", "FIRST", "SMOKE", "Syncs", "Turn"]

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


FIRST: Final = Turn(poison=0xA5)
AGAIN: Final = Turn(repeats=True)

SMOKE: Final = (FIRST, Turn(poison=0x5A, steps=True), AGAIN)
"""As in `syncguard.smoke`: the learner's weights, those after a step, and the same again."""

ARMED_LATE: Final = (Turn(steps=True), AGAIN)
"""What follows a healthy sync: nothing is poisoned, so stale values are almost right."""


class Syncs:
    """Synchronizes the two sides of a place.

    Args:
        place: The two sides.
        checks: Names of the checks to run.
        timeout_s: Limit for each check.
        seed: Of prompts, sampling and probes.
        bucket_bytes: Gives the largest size of each sync's buckets.
    """

    def __init__(
        self,
        place: Place,
        checks: Sequence[str],
        timeout_s: float,
        seed: int,
        bucket_bytes: Callable[[], int],
    ) -> None:
        self._place = place
        self._checks = [CHECKS[name] for name in checks]
        self._timeout_s = timeout_s
        self._seed = seed
        self._bucket_bytes = bucket_bytes
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
                checks=self._checks,
                timeout_s=self._timeout_s,
                vocabulary=self._place.vocabulary,
                seed=self._seed,
            )
        return self._guard
