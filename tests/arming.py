"""Arms faults of the library on a live engine that serves all of them, one after the other."""

from syncguard.checks import CHECKS
from syncguard.faults import FAULTS, World
from syncguard.guard import Guard
from syncguard.reporting import Broadcast
from syncguard.runner import OBSERVABILITY
from syncguard.verdict import Status, Verdict
from tests.pairs import BUCKET_BYTES, Pair

__all__ = ["armed", "world_of"]

_CHECKS = [check for check in CHECKS.values() if not check.reference]
_SMOKE = (
    (False, {"poison": 0xA5}),
    (True, {"poison": 0x5A}),
    (False, {"same_weights": True}),
)
"""Syncs: whether an optimizer step comes before, and the options."""


def world_of(pair: Pair) -> World:
    """Both sides, found healthy after what came before."""
    assert pair.judge(poison=0xA5) == {}
    return World(lambda: pair.learner, lambda: pair.engine)


def armed(name: str, world: World) -> tuple[int, set[str]]:
    """Arm a fault at its first site; how often it fired, and who saw it at the first such sync."""
    fault = FAULTS[name]
    learner, engine = world.learner, world.engine
    vocabulary = learner.checkpoint.config["vocab_size"]
    # A guard that begins anew: each fault meets a first sync.
    guard = Guard(learner, engine, Broadcast([]), checks=_CHECKS, vocabulary=vocabulary)
    verdicts: list[Verdict] = []
    with fault.armed(world, fault.sites_in(world)[0]):
        for steps, options in _SMOKE:
            if steps:
                learner.step(1e-6)
            _, verdicts = guard.sync(bucket_bytes=BUCKET_BYTES, **options)
            if world.fired:
                break
        fired = world.fired
    return fired, _seen_by(verdicts)


def _seen_by(verdicts: list[Verdict]) -> set[str]:
    counted = [verdict for verdict in verdicts if verdict.counts]
    silent = any(verdict.status is Status.NOT_RUN for verdict in counted)
    failed = {verdict.check for verdict in counted if verdict.status is Status.FAIL}
    return failed | ({OBSERVABILITY} if silent else set())
