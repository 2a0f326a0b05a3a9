"""Runs one cell: builds both sides, arms the fault, syncs until the checks have told."""

import contextlib
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from syncguard.campaign.cell import Cell, CellSpec
from syncguard.campaign.flow import FLOWS, Syncs
from syncguard.campaign.pins import Pins
from syncguard.campaign.places import make_place, seeded
from syncguard.campaign.trail import Trail
from syncguard.checks import CHECKS
from syncguard.errors import SyncguardError
from syncguard.faults import FAULTS, Fault
from syncguard.profiles import PROFILES
from syncguard.verdict import Status, Verdict

__all__ = ["CellSettings", "NotHealthy", "replay", "run_cell"]

_BUCKETS: Final = 8


class NotHealthy(SyncguardError):
    """A sync in which no fault had changed anything did not pass all checks."""


@dataclass(frozen=True, slots=True)
class CellSettings:
    """What all cells of a campaign share.

    Attributes:
        checks: Names of the checks to run; all registered ones by default, references included.
        check_timeout_s: Limit for each check: ample for a sound one, and not a minute for one
            that a fault makes hang.
        options: Further options of the command line, for replay.
        profile: Name of the profile: which syncs there are, and how deep probes go.
        pins: What is fixed of every place.
    """

    checks: tuple[str, ...] = ()
    check_timeout_s: float = 5.0
    options: tuple[str, ...] = ()
    profile: str = "smoke"
    pins: Pins = field(default_factory=Pins)


def run_cell(spec: CellSpec, settings: CellSettings | None = None) -> Cell:
    """Run one cell in this process.

    The fault is armed before the first sync (``load``), or after a healthy one, before a small
    optimizer step and without poison (``late``). Syncs end when the fault has been detected and
    every check that claims it has been reached; at the latest when every layer has been probed
    since it fired.

    Raises:
        KeyError: There is no such fault.
    """
    settings = settings or CellSettings()
    checks = settings.checks or tuple(CHECKS)
    fault = FAULTS[spec.fault]
    profile = PROFILES[settings.profile]
    claimed_by = profile.claims(fault.claimed_by)
    trail = Trail(fault.breaks, claimed_by, checks)
    started = time.perf_counter()
    error = ""
    seeded(spec.seed)
    try:
        _sync_armed(spec, fault, checks, settings, trail)
    except Exception as problem:  # noqa: BLE001 - whatever a fault does to the engine is a finding
        error = f"{type(problem).__name__}: {problem}"
    return Cell(
        spec=spec,
        breaks=fault.breaks,
        claimed_by=claimed_by,
        fired=trail.fired,
        within=trail.within,
        seen_at=dict(trail.seen_at),
        detected_by=trail.detected_by,
        evidence=dict(trail.evidence),
        reached=tuple(trail.reached),
        not_run=dict(trail.not_run),
        equivalent=trail.equivalent or fault.equivalent,
        error=error,
        replay=replay(spec, settings.options),
        cost_s=time.perf_counter() - started,
    )


def replay(spec: CellSpec, options: Sequence[str] = ()) -> str:
    """The command line that repeats a cell."""
    words = [
        "syncguard", "campaign", "--engine", spec.engine, "--faults", spec.fault,
        "--sites", spec.site, "--stages", spec.stage, "--seeds-from", str(spec.seed),
        "--seeds", "1", "--healthy", "0", *options,
    ]  # fmt: skip
    return shlex.join(words)


def _sync_armed(
    spec: CellSpec, fault: Fault, checks: Sequence[str], settings: CellSettings, trail: Trail
) -> None:
    with contextlib.ExitStack() as closing:
        place = make_place(spec.engine, fault.topology, spec.seed, settings.pins)
        world = place.world
        closing.callback(lambda: world.engine.close())
        limit = place.nbytes // (_BUCKETS + 5 * spec.seed % 11) + 1
        profile, flow = PROFILES[settings.profile], FLOWS[settings.profile]
        timeout_s = settings.check_timeout_s
        syncs = Syncs(place, checks, timeout_s, spec.seed, lambda: limit, profile)
        trail.within = profile.within(len({row.module for row in world.engine.layers()}))
        if spec.stage == "late":
            _require_health(syncs.sync(flow.load[0]))
        world.fired = 0
        trail.equivalent = world.why_equivalent(fault.name)
        closing.enter_context(fault.armed(world, spec.site))
        for turn in flow.turns(spec.stage, trail.within):
            verdicts = syncs.sync(turn)
            trail.note(world.fired, verdicts)
            if trail.settled:
                break
        if not trail.fired:
            _require_health(verdicts)


def _require_health(verdicts: Sequence[Verdict]) -> None:
    # What went wrong with the sync itself explains the rest.
    for verdict in sorted(verdicts, key=lambda each: each.check != "session"):
        reference = verdict.check in CHECKS and CHECKS[verdict.check].reference
        if verdict.counts and verdict.status is not Status.PASS and not reference:
            raise NotHealthy(
                f"before the fault changed anything {verdict.check} gave {verdict.status}: "
                f"{verdict.message}"
            )
