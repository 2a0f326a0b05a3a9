"""Arms one fault at one site of a stub, syncs as a smoke check does, and keeps what was told."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from syncguard.checks import CHECKS
from syncguard.faults import FAULTS, Fault, World
from syncguard.guard import Guard
from syncguard.reporting import Broadcast
from syncguard.runner import OBSERVABILITY
from syncguard.stubs import Topology, make_stub_engine, make_stub_learner
from syncguard.verdict import Status, Verdict

Flow = tuple[tuple[bool, Mapping[str, Any]], ...]
"""Syncs: whether an optimizer step comes before, and the options."""

_LEARNING_RATE = 1e-6
_CHECKS = [check for check in CHECKS.values() if not check.reference]
_SMOKE: Flow = (
    (False, {"poison": 0xA5}),
    (True, {"poison": 0x5A}),
    (False, {"same_weights": True}),
)
_LATE: Flow = ((True, {}), (False, {"same_weights": True}))
_SHORT_S = 0.5
"""Limit of a check where an observation hangs."""


@dataclass(frozen=True)
class Told:
    """What the checks said at the first sync in which a fault fired."""

    fired: int
    failed: frozenset[str]
    silent: frozenset[str]

    @property
    def seen_by(self) -> frozenset[str]:
        """Checks that failed; a check that tells why it is silent is what C7 asks for."""
        return self.failed | ({OBSERVABILITY} if self.silent else set())


def make_world(fault: Fault, seed: int = 0) -> World:
    topology = Topology(**fault.topology)
    return World(
        lambda: make_stub_learner(topology, seed=seed),
        lambda: make_stub_engine(topology, seed=seed),
    )


def sites_of(name: str) -> list[str]:
    return FAULTS[name].sites_in(make_world(FAULTS[name]))


def spread(sites: list[str]) -> list[str]:
    """The first, one amid and the last."""
    return [sites[i] for i in sorted({0, len(sites) // 2, len(sites) - 1})] if sites else []


def run(name: str, site: str, *, late: bool = False, seed: int = 0) -> tuple[Told, World]:
    """Arm a fault and sync until it has fired; the world is restored then."""
    fault = FAULTS[name]
    world = make_world(fault, seed)
    sync = _syncing(world, timeout_s=_SHORT_S if name == "observation-hangs" else 60.0)
    if late:
        assert complaints(sync(poison=0xA5)) == {}
    world.fired = 0
    with fault.armed(world, site):
        for steps, options in _LATE if late else _SMOKE:
            if steps:
                world.learner.step(_LEARNING_RATE)
            verdicts = sync(**options)
            if world.fired:
                break
        fired = world.fired
    return _told(fired, verdicts), world


def heals(world: World) -> dict[str, str]:
    """Complaints after up to two whole syncs; if there are some, after building both sides again.

    The first sync after one that failed starts on an engine that must not be observed serving.
    """
    found: dict[str, str] = {}
    for again in (False, True):
        if again:
            world.engine.restart()
            world.learner.restart()
        sync = _syncing(world, timeout_s=60.0)
        for pattern in (0xA5, 0x5A):
            found = complaints(sync(poison=pattern))
            if not found:
                return {}
    return found


def complaints(verdicts: list[Verdict]) -> dict[str, str]:
    return {
        verdict.check: f"{verdict.status}: {verdict.message}"
        for verdict in verdicts
        if verdict.counts and verdict.status is not Status.PASS
    }


def _syncing(world: World, *, timeout_s: float) -> Callable[..., list[Verdict]]:
    vocabulary = world.engine.topology.vocab
    guard = Guard(
        world.learner,
        world.engine,
        Broadcast([]),
        checks=_CHECKS,
        vocabulary=vocabulary,
        timeout_s=timeout_s,
    )
    return lambda **options: guard.sync(bucket_bytes=1 << 13, **options)[1]


def _told(fired: int, verdicts: list[Verdict]) -> Told:
    counted = [verdict for verdict in verdicts if verdict.counts]
    return Told(
        fired=fired,
        failed=frozenset(v.check for v in counted if v.status is Status.FAIL),
        silent=frozenset(v.check for v in counted if v.status is Status.NOT_RUN),
    )
