"""What a campaign is to run, as the command line asks for it."""

import os
from dataclasses import dataclass, field
from typing import Final

from syncguard.campaign.cell import STAGES
from syncguard.campaign.live import LIVE
from syncguard.campaign.pins import Pins
from syncguard.campaign.places import ENGINES
from syncguard.errors import UsageError
from syncguard.profiles import PROFILES
from syncguard.sides import PROCESSES, stub_topology
from syncguard.stubs.topology import CHOICES

__all__ = ["CampaignOptions"]

_STUB_TIMEOUTS_S: Final = (60.0, 5.0)
"""Of a cell and of a check, see `syncguard.campaign.live.LiveEngine`."""
_STARTS: Final = 2
"""Times as long where an engine starts processes of its own."""

_MOST_LIVE: Final = 2
"""Live engines at a time: each takes most of a gigabyte."""


@dataclass(frozen=True, slots=True)
class CampaignOptions:
    """See ``syncguard campaign --help``.

    Attributes:
        engine: One of `syncguard.campaign.places.ENGINES`.
        faults: Names or patterns.
        profile: A name of `syncguard.profiles.PROFILES`.
        checks: Names or patterns, of the profile's.
        sites: Names or patterns.
        stages: Some of `syncguard.campaign.cell.STAGES`.
        seeds: How many seeds for each fault, site and stage.
        first_seed: The first of them, and of the healthy runs'.
        healthy: How many healthy runs.
        all_sites: Whether to take all sites of a fault, not the first, one amid and the last.
        no_faults: Whether to run only the healthy runs.
        workers: Processes at a time; 0 means one for each core.
        timeout_s: Limit for a cell; 0 means one that suits the engine.
        pins: What is fixed of the engine whatever a fault needs.

    Raises:
        UsageError: A value is out of range.
    """

    engine: str = "stub"
    faults: tuple[str, ...] = ("*",)
    profile: str = "smoke"
    checks: tuple[str, ...] = ("*",)
    sites: tuple[str, ...] = ("*",)
    stages: tuple[str, ...] = STAGES
    seeds: int = 1
    first_seed: int = 0
    healthy: int = 0
    all_sites: bool = False
    no_faults: bool = False
    workers: int = 0
    timeout_s: float = 0.0
    pins: Pins = field(default_factory=Pins)

    def __post_init__(self) -> None:
        for option, value, known in (
            ("--engine", self.engine, ENGINES),
            ("--profile", self.profile, PROFILES),
            *(("--stages", stage, STAGES) for stage in self.stages),
        ):
            if value not in known:
                raise UsageError(f"{option} {value!r} is not one of {', '.join(known)}")
        least = {"seeds": 1, "first_seed": 0, "healthy": 0, "workers": 0, "timeout_s": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UsageError(f"{name} must be at least {bound}, got {getattr(self, name)}")
        self._require_pins()
        if self.no_faults and not self.healthy:
            raise UsageError("--no-faults without --healthy leaves nothing to run")

    @property
    def processes(self) -> int:
        """Processes at a time."""
        cores = len(os.sched_getaffinity(0))
        if self.workers or self.engine not in LIVE:
            return self.workers or cores
        return max(1, min(cores // max(1, self.pins.ranks), _MOST_LIVE))

    @property
    def cell_timeout_s(self) -> float:
        """Limit for a cell, in seconds."""
        return self.timeout_s or self._timeouts_s[0]

    @property
    def check_timeout_s(self) -> float:
        """Limit for a check within a cell, in seconds."""
        return self._timeouts_s[1]

    @property
    def _timeouts_s(self) -> tuple[float, float]:
        if self.engine not in LIVE:
            return _STUB_TIMEOUTS_S
        cell, check = LIVE[self.engine].timeouts_s
        here = self.pins.ranks <= 1 and self.pins.process in ("", "in")
        return (cell, check) if here else (_STARTS * cell, check)

    @property
    def replayed(self) -> tuple[str, ...]:
        """Options that a replay line must repeat."""
        profile = [] if self.profile == "smoke" else ["--profile", self.profile]
        chosen = [] if self.checks == ("*",) else self.checks
        checks = (word for pattern in chosen for word in ("--checks", pattern))
        return (*profile, *checks, *self.pins.words())

    def _require_pins(self) -> None:
        pins = self.pins
        if pins.process and pins.process not in PROCESSES:
            known = ", ".join(PROCESSES)
            raise UsageError(f"--process {pins.process!r} is not one of {known}")
        if self.engine in LIVE:
            LIVE[self.engine].require(pins)
            return
        away = pins.process not in ("", PROCESSES[0])
        ours = {"--path": pins.path, "--process": away, "--tp": pins.ranks > 1}
        if given := [option for option, value in ours.items() if value]:
            raise UsageError(
                f"the stub does not know {', '.join(given)}\n  what to do: leave it out, or take "
                f"another engine or --model"
            )
        if pins.quantization not in ("", *CHOICES["quantization"]):
            raise UsageError(
                f"--quantization {pins.quantization!r} is none of the stub's\n"
                f"  expected: {', '.join(CHOICES['quantization'])}"
            )
        if pins.model:
            stub_topology(pins.model)
