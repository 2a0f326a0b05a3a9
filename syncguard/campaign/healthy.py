"""Healthy runs: no fault, random topologies, weights, buckets and orders; nothing may alarm."""

import contextlib
import random
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from syncguard.campaign.flow import FLOWS, Syncs
from syncguard.campaign.live import LIVE
from syncguard.campaign.pins import Pins
from syncguard.campaign.places import Place, make_place, refusal, seeded
from syncguard.checks import CHECKS
from syncguard.errors import UsageError
from syncguard.profiles import PROFILES
from syncguard.stubs import Topology
from syncguard.stubs.topology import CHOICES
from syncguard.verdict import Status, Verdict

__all__ = ["Alarm", "HealthyRun", "HealthySpec", "random_topology", "run_healthy"]

_CHECK_TIMEOUT_S: Final = 120.0
_FREE: Final = Pins()
_SIZES: Final[Mapping[str, Sequence[int]]] = {
    "dense_layers": (0, 1),
    "expert_intermediate": (32, 64, 96),
    "experts": (0, 0, 2, 3, 4, 6),
    "head_dim": (16, 32),
    "heads": (2, 4, 6),
    "hidden": (32, 64, 96),
    "intermediate": (64, 96, 128),
    "kv_heads": (1, 2, 4),
    "latent": (32, 64),
    "layers": (1, 2, 3),
    "ranks": (1, 1, 1, 2, 3, 4),
    "redundant_experts": (0, 0, 1, 2),
    "replicas": (1, 1, 2),
    "top_k": (1, 2, 3),
    "vocab": (17, 48, 96, 131),
}
_SWITCHES: Final = (
    "bias", "correction_bias", "expert_parallel", "graph", "kv_scales", "shared_expert", "sinks",
    "tied",
)  # fmt: skip
_SPREADS: Final = (0.0, 0.0, 1e-3, 1e-2, 0.1, 0.5)
"""Standard deviations of noise on the weights, in those of the weight itself."""


@dataclass(frozen=True, slots=True)
class HealthySpec:
    """What a healthy run is: all of it follows from the seed."""

    engine: str
    seed: int

    @property
    def key(self) -> str:
        """What a session file knows the run by."""
        return f"healthy {self.engine} {self.seed}"


@dataclass(frozen=True, slots=True)
class Alarm:
    """A verdict that no healthy run may give.

    Attributes:
        check: Who gave it.
        sync: After which sync.
        status: ``fail`` or ``not_run``.
        message: Its text.
    """

    check: str
    sync: int
    status: str
    message: str


@dataclass(frozen=True, slots=True)
class HealthyRun:
    """What came of a healthy run.

    Attributes:
        spec: What was run.
        topology: What both sides were made of.
        alarms: What should not have been said, references left out.
        references: Reference checks that failed.
        error: Why the run did not come to its end; empty if it did.
        replay: The command line that repeats it.
        cost_s: Seconds that it took.
    """

    spec: HealthySpec
    topology: str = ""
    alarms: tuple[Alarm, ...] = ()
    references: tuple[str, ...] = ()
    error: str = ""
    replay: str = ""
    cost_s: float = 0.0

    @property
    def alarmed(self) -> bool:
        """Whether the run counts as a false alarm."""
        return bool(self.alarms or self.error)

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON values."""
        value = asdict(self)
        return {**value.pop("spec"), **value}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "HealthyRun":
        """The inverse of `to_dict`."""
        return cls(
            HealthySpec(value["engine"], value["seed"]),
            value["topology"],
            tuple(Alarm(**alarm) for alarm in value["alarms"]),
            tuple(value["references"]),
            value["error"],
            value["replay"],
            value["cost_s"],
        )


def random_topology(rng: random.Random) -> Topology:
    """Draw any valid topology; every field is drawn, and what does not fit is drawn again."""
    while True:
        fields: dict[str, Any] = {name: rng.choice(sizes) for name, sizes in _SIZES.items()}
        fields |= {name: rng.choice(values) for name, values in CHOICES.items()}
        fields |= {name: rng.random() < 0.5 for name in _SWITCHES}
        with contextlib.suppress(UsageError):
            return Topology(**fields)


def run_healthy(
    spec: HealthySpec,
    checks: Sequence[str] = (),
    options: Sequence[str] = (),
    profile: str = "smoke",
    pins: Pins = _FREE,
) -> HealthyRun:
    """Run the syncs of a profile without a fault, with all checks, in this process.

    Args:
        spec: Engine and seed.
        checks: Names of the checks to run; all by default.
        options: Further options of the command line, for replay.
        profile: Name of the profile.
        pins: What is fixed of the topology.
    """
    rng = random.Random(spec.seed)
    seeded(spec.seed)
    started = time.perf_counter()
    alarms: list[Alarm] = []
    references: dict[str, None] = {}
    topology = error = ""
    try:
        place = make_place(spec.engine, _fields(spec.engine, rng, pins), spec.seed, pins)
        topology = place.topology
        with contextlib.closing(place.world.engine), _shuffled(place, rng):
            for verdict in _judged(place, checks or tuple(CHECKS), spec.seed, rng, profile):
                if verdict.check in CHECKS and CHECKS[verdict.check].reference:
                    references[verdict.check] = None
                else:
                    told = verdict.check, verdict.sync, verdict.status.value, verdict.message
                    alarms.append(Alarm(*told))
    except Exception as problem:  # noqa: BLE001 - a run that cannot end is a false alarm too
        error = f"{type(problem).__name__}: {problem}"
    words = [
        "syncguard", "campaign", "--engine", spec.engine, "--no-faults", "--healthy", "1",
        "--seeds-from", str(spec.seed), *options,
    ]  # fmt: skip
    cost_s = round(time.perf_counter() - started, 4)
    return HealthyRun(
        spec, topology, tuple(alarms), tuple(references), error, shlex.join(words), cost_s
    )


def _fields(engine: str, rng: random.Random, pins: Pins) -> Mapping[str, Any]:
    """A topology that fits what is fixed."""
    if engine in LIVE:
        fitting = [each for each in LIVE[engine].healthy if not refusal(engine, each, pins)]
        return rng.choice(fitting)
    drawn = {} if pins.model else asdict(random_topology(rng))
    if pins.quantization:
        drawn.pop("quantization", None)
    return drawn


def _judged(
    place: Place, checks: Sequence[str], seed: int, rng: random.Random, profile: str
) -> Iterator[Verdict]:
    """The verdicts of all syncs that are neither a pass nor not applicable."""
    spread = rng.choice(_SPREADS)
    if spread and hasattr(place.world.learner, "perturb"):
        place.world.learner.perturb(scale=spread, seed=seed)

    def bucket_bytes() -> int:
        return int(place.nbytes ** rng.uniform(0.4, 1.0)) + 1

    depth = PROFILES[profile]
    syncs = Syncs(place, checks, _CHECK_TIMEOUT_S, seed, bucket_bytes, depth)
    period = depth.period(len({row.module for row in place.world.engine.layers()}))
    for turn in FLOWS[profile].turns("load", period):
        for verdict in syncs.sync(turn):
            if verdict.counts and verdict.status is not Status.PASS:
                yield verdict


@contextlib.contextmanager
def _shuffled(place: Place, rng: random.Random) -> Iterator[None]:
    """Send the weights in a random order."""
    sites = place.world.seams().get("export", {})

    def in_any_order(weights: Callable[..., Any]) -> Callable[..., Any]:
        def shuffled(*args: Any, **kwargs: Any) -> Iterator[Any]:
            sent = list(weights(*args, **kwargs))
            rng.shuffle(sent)
            return iter(sent)

        return shuffled

    with contextlib.ExitStack() as armed:
        for seam in sites.values():
            armed.enter_context(seam.wrap(in_any_order))
        yield
