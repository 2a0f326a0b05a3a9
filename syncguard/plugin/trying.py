"""Tries faults of the library in the two sides that the options ask for."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from syncguard.checks import CHECKS
from syncguard.errors import SyncguardError, Unsupported, UsageError
from syncguard.faults import FAULTS, Fault, World
from syncguard.plugin.faulting import lacking
from syncguard.plugin.guarding import Session
from syncguard.plugin.options import Options
from syncguard.plugin.recording import Trial
from syncguard.plugin.sides import STUB, Sides
from syncguard.plugin.topologies import parse_topology
from syncguard.runner import OBSERVABILITY
from syncguard.sides import brought_up
from syncguard.stubs import make_stub_engine, make_stub_learner
from syncguard.verdict import Status, Verdict

__all__ = ["NotHealthy", "Planned", "Trying"]

_LEARNING_RATE: Final = 1e-6
_HEALTHY: Final[Mapping[str, Any]] = {"poison": 0xA5}
_FROM_LOAD: Final[Sequence[Mapping[str, Any]]] = (
    _HEALTHY,
    {"poison": 0x5A, "step": _LEARNING_RATE},
    {"same_weights": True},
)
_LATE: Final[Sequence[Mapping[str, Any]]] = ({"step": _LEARNING_RATE}, {"same_weights": True})
"""After a healthy sync and without poison, so that stale values are almost right."""

_STUB_TIMEOUT_S: Final = 3.0
_TIMEOUT_S: Final = 60.0


class NotHealthy(SyncguardError):
    """The two sides do not pass without a fault, so that none can be tried."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault and where to arm it.

    Attributes:
        fault: Its name.
        site: Where; empty if it cannot be armed.
        claimed_by: Checks that say they see it.
        skipped: Why it cannot be armed; empty if it can.
        needs: What an engine must be for it to change something, as far as this one may not be.
    """

    fault: str
    site: str
    claimed_by: tuple[str, ...] = ()
    skipped: str = ""
    needs: str = ""

    def __str__(self) -> str:
        """The fault and its site, as the command line names them."""
        return f"{self.fault}@{self.site}" if self.site else self.fault


class Trying:
    """Where faults are tried: new stubs for each, or one engine for all.

    Args:
        options: Of the plugin.
        sides: Gives the sides of an engine that is no stub.
    """

    def __init__(self, options: Options, sides: Callable[[], Sides]) -> None:
        self._options = options
        self._sides = sides
        self._stub = options.engine == STUB

    def planned(self) -> list[Planned]:
        """Every fault, at the first, a middle and the last kind of its sites.

        Sites that differ only in numbers, such as those of layers, are of one kind.
        """
        plan: list[Planned] = []
        worlds: dict[str, World | str] = {}
        for fault in FAULTS.values():
            key = repr(sorted(fault.topology.items())) if self._stub else ""
            if key not in worlds:
                worlds[key] = self._world_or_why(fault)
            plan += _planned(fault, worlds[key], "" if self._stub else _needs(fault))
        return plan

    def tried(self, plan: Planned) -> Trial:
        """Arm a fault, and sync until a check has seen it.

        Raises:
            NotHealthy: The sides do not pass without it.
            Unsupported: The engine is not what the fault needs.
        """
        fault = FAULTS[plan.fault]
        world = self._world(fault)
        session = self._session(world)
        if fault.late or not self._stub:
            session = self._healthy(world, session)
        if _only_at_first(fault):
            session = self._session(world)
        sync = self._syncing(world, session)
        detected: list[str] = []
        world.fired = 0
        with contextlib.ExitStack() as arming:
            try:
                arming.enter_context(fault.armed(world, plan.site))
            except KeyError as error:
                raise Unsupported(f"{fault.name} finds no {error} in this engine") from error
            for turn in _LATE if fault.late else _FROM_LOAD:
                verdicts = sync(turn)
                if world.fired:
                    detected = _detected(fault, verdicts)
                    break
        if not world.fired and plan.needs:
            raise Unsupported(f"{fault.name} needs {plan.needs}, which this engine is not")
        why = world.why_equivalent(fault.name)
        if why and not set(detected) & set(plan.claimed_by):
            name = world.engine.name
            raise Unsupported(f"{fault.name} changes nothing that {name} serves: {why}")
        return Trial(plan.fault, plan.site, world.fired, plan.claimed_by, tuple(detected))

    def _syncing(
        self, world: World, session: Session
    ) -> Callable[[Mapping[str, Any]], Sequence[Verdict]]:
        export = world.learner.weights  # a fault that is armed later does not reach this one
        cold: dict[str, Any] = {}
        if self._stub:
            topology, seed = world.engine.topology, self._options.seed
            cold["start_cold"] = lambda: brought_up(
                make_stub_engine(topology, seed=seed), list(export())
            )

        def sync(turn: Mapping[str, Any]) -> Sequence[Verdict]:
            arguments = dict(turn)
            if "step" in turn:
                arguments["step"] = world.learner.step(turn["step"])
            return session.sync(**arguments, **cold)[1]

        return sync

    def _session(self, world: World) -> Session:
        limit = _STUB_TIMEOUT_S if self._stub else _TIMEOUT_S
        return Session(world.learner, world.engine, self._options, limit)

    def _healthy(self, world: World, session: Session) -> Session:
        """Repair what an earlier fault has left: by a sync or, if need be, by a new engine."""
        why = _complaint(session)
        if why and not self._stub:
            live = self._sides()
            live.close()
            world.learner, world.engine = live.learner, live.engine
            session = self._session(world)
            why = _complaint(session)
        if why:
            raise NotHealthy(f"without a fault {why}")
        return session

    def _world_or_why(self, fault: Fault) -> World | str:
        try:
            return self._world(fault)
        except UsageError as error:
            return str(error)

    def _world(self, fault: Fault) -> World:
        if not self._stub:
            live = self._sides()
            return World(lambda: live.learner, lambda: live.engine)
        topology, seed = parse_topology(self._options.model, **fault.topology), self._options.seed
        return World(
            lambda: make_stub_learner(topology, seed=seed),
            lambda: make_stub_engine(topology, seed=seed),
        )


def _planned(fault: Fault, world: World | str, needs: str) -> list[Planned]:
    if isinstance(world, str):
        return [Planned(fault.name, "", fault.claimed_by, world)]
    sites = _spread([site for site in fault.sites_in(world) if not _is_reference(site)])
    if not sites:
        why = lacking(fault.seam, world.engine.name)
        return [Planned(fault.name, "", fault.claimed_by, why)]
    return [Planned(fault.name, site, fault.claimed_by, needs=needs) for site in sites]


def _only_at_first(fault: Fault) -> bool:
    """Whether the checks that claim a fault look at the first sync of a session only."""
    claims = [CHECKS[name] for name in fault.claimed_by if name in CHECKS]
    return bool(claims) and all("first_sync" in check.needs for check in claims)


def _needs(fault: Fault) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fault.topology.items())


def _complaint(session: Session) -> str:
    """What is wrong without a fault; empty if nothing is."""
    _, verdicts = session.sync(**_HEALTHY)
    bad = [v for v in verdicts if v.counts and v.status is not Status.PASS]
    return f"{bad[0].check} gives {bad[0].status}: {bad[0].message.splitlines()[0]}" if bad else ""


def _is_reference(site: str) -> bool:
    return site in CHECKS and CHECKS[site].reference


def _spread(sites: Sequence[str]) -> list[str]:
    """The first site of the first, a middle and the last kind."""
    kinds = {re.sub(r"\d+", "#", site): site for site in reversed(sites)}
    found = list(reversed(kinds.values()))
    chosen = {0, len(found) // 2, len(found) - 1}
    return [site for number, site in enumerate(found) if number in chosen]


def _detected(fault: Fault, verdicts: Sequence[Verdict]) -> list[str]:
    """Checks that found a fault; that a silenced check says so is what C7 asks."""
    found = [v.check for v in verdicts if v.status is Status.FAIL]
    silent = [v.check for v in verdicts if v.status is Status.NOT_RUN and v.counts]
    if silent and "C7" in fault.breaks and OBSERVABILITY not in found:
        found.append(OBSERVABILITY)
    return found
