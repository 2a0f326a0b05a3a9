"""The smoke check: a learner, an engine, a few syncs, every check after each."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from syncguard.checkpoints import Checkpoint
from syncguard.engines.tested import untested
from syncguard.errors import SyncguardError, UsageError
from syncguard.guard import Guard
from syncguard.interrupts import Interrupts
from syncguard.observations import StepReport
from syncguard.profiles import PROFILES, SMOKE
from syncguard.protocols import Engine, Learner
from syncguard.report import Environment, Report, SyncSummary
from syncguard.reporting import Listener
from syncguard.sides import (
    PROCESSES,
    default_model,
    make_engine,
    make_learner,
    make_model,
    start_cold,
)
from syncguard.verdict import Verdict

if TYPE_CHECKING:
    from syncguard.faults import World

__all__ = ["Interrupted", "SmokeOptions", "run_smoke"]

_PATTERNS: Final = (0xA5, 0x5A)
_LEARNING_RATE: Final = 1e-6
_BUCKETS: Final = 8
_BYTES: Final = 2  # of a weight on the wire, in bf16
_PREPARATIONS: Final = 3


@dataclass(frozen=True, slots=True)
class SmokeOptions:
    """What to check, as the command line asks for it.

    Attributes:
        engine: ``vllm``, ``sglang``, ``stub``, or ``MODULE:FACTORY`` of another adapter.
        model: Name of a model that syncguard makes itself, or a checkpoint folder; empty for the
            engine's own, see `syncguard.sides.default_model`.
        quantization: ``mxfp8``, ``none``, or another one that the engine knows.
        path: How a sync reaches the engine; empty for its first.
        process: One of `syncguard.sides.PROCESSES`.
        profile: One of `syncguard.profiles.PROFILES`.
        cold_warm: Whether to compare the engine at the end with one that is started on the
            learner's weights.
        syncs: Number of syncs; the last one repeats the weights of the one before.
        bucket_mib: Largest size of a bucket in MiB; by default an eighth of the model.
        seed: Of everything random.
        fault: ``NAME`` or ``NAME@SITE`` of a fault that is armed from before the first sync on.
        settings: Further settings of the engine, see `syncguard.sides.make_engine`.
    """

    engine: str = "vllm"
    model: str = ""
    quantization: str = "mxfp8"
    path: str = ""
    process: str = PROCESSES[0]
    profile: str = SMOKE.name
    cold_warm: bool = False
    syncs: int = 3
    bucket_mib: float | None = None
    seed: int = 0
    fault: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            known = ", ".join(PROFILES)
            raise UsageError(f"unknown profile {self.profile!r}; known: {known}")
        if self.process not in PROCESSES:
            known = ", ".join(PROCESSES)
            raise UsageError(f"unknown process {self.process!r}; known: {known}")
        if self.syncs < 1:
            raise UsageError(f"--syncs must be at least 1, got {self.syncs}")
        if self.bucket_mib is not None and not 0 < self.bucket_mib < math.inf:
            raise UsageError(f"--bucket-mib must be a number greater than 0, got {self.bucket_mib}")


class Interrupted(SyncguardError):
    """The user stopped the run; what was found until then is in ``report``."""

    def __init__(self, report: Report) -> None:
        super().__init__("interrupted")
        self.report = report


def run_smoke(options: SmokeOptions, listener: Listener) -> Report:
    """Run the smoke check.

    Builds the learner, starts the engine on other weights, then syncs ``options.syncs`` times:
    the first syncs follow a poisoning each, with a real optimizer step between them; the last one
    sends the same weights again. Every check runs after every sync.

    Raises:
        UsageError: The request cannot be carried out as given.
        Interrupted: The user stopped the run.
        NotFired: The fault that was to be armed changed nothing.
    """
    run = _Run(options, listener)
    try:
        with run.interrupts.remembered():
            run.prepare_and_judge()
    except KeyboardInterrupt:
        raise Interrupted(run.report(interrupted=True)) from None
    report = run.report()
    listener.finished(report)
    run.require_firing()
    return report


class _Run:
    """One run: the listener of its own guard, so that an interrupted run keeps its verdicts."""

    def __init__(self, options: SmokeOptions, listener: Listener) -> None:
        self._options = options
        self._listener = listener
        self._environment: dict[str, Environment | str] = {}
        self._syncs: list[SyncSummary] = []
        self._verdicts: list[Verdict] = []
        self._armed: tuple[str, World] | None = None
        self._profile = PROFILES[options.profile]
        self._done = 0
        self.interrupts = Interrupts()

    def report(self, *, interrupted: bool = False) -> Report:
        notes = []
        if self._armed is not None:
            armed, world = self._armed
            notes.append(f"fault {armed} was armed and fired {world.fired} times")
        engine = self._environment.get("engine", {})
        if isinstance(engine, Mapping):
            note = untested(str(engine.get("name", "")), str(engine.get("version", "")))
            notes += [note] if note else []
        return Report(
            self._environment,
            tuple(self._syncs),
            tuple(self._verdicts),
            interrupted=interrupted,
            notes=tuple(notes),
            conditions=self._profile.conditions(),
        )

    def require_firing(self) -> None:
        if self._armed is not None and not self._armed[1].fired:
            from syncguard.campaign.arming import NotFired

            raise NotFired(f"fault {self._armed[0]} fired on nothing, so this run proves nothing")

    def step(self, text: str, done: int, total: int) -> None:
        self.interrupts.check()
        self._listener.step(text, done, total)

    def verdict(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        self._listener.verdict(verdict)
        self.interrupts.check()

    def finished(self, report: Report) -> None:
        self._listener.finished(report)

    def prepare_and_judge(self) -> None:
        options = self._options
        chosen = None
        if options.fault:
            from syncguard.campaign.arming import parse_fault

            chosen = parse_fault(options.fault)
        topology = dict(chosen.fault.topology) if chosen else {}
        quantization = str(topology.get("quantization", options.quantization))
        model = options.model or default_model(options.engine, options.settings)
        self._advance(f"preparing {model}")
        checkpoint = make_model(options.engine, model, quantization, topology)
        with contextlib.ExitStack() as closing:
            self._advance("starting the engine")
            engine = make_engine(
                options.engine,
                checkpoint,
                quantization,
                options.path,
                options.seed,
                options.settings,
                options.process,
            )
            closing.callback(engine.close)
            self._advance("building the learner")
            learner = make_learner(checkpoint, quantization, options.seed, engine.wire)
            self._environment.update(_environment(options, checkpoint, learner, engine))
            if chosen:
                from syncguard.faults import World

                world = World(lambda: learner, lambda: engine)
                site = chosen.site_in(world)
                self._armed = f"{chosen.fault.name}@{site}", world
                closing.enter_context(chosen.fault.armed(world, site))
            self._judge(checkpoint, learner, engine)

    def _judge(self, checkpoint: Checkpoint, learner: Learner, engine: Engine) -> None:
        options = self._options
        vocabulary = checkpoint.config["vocab_size"]
        guard = Guard(
            learner,
            engine,
            self,
            profile=self._profile,
            vocabulary=vocabulary,
            seed=options.seed,
        )
        limit = _bucket_bytes(options, checkpoint)

        def cold() -> Engine:
            return start_cold(
                options.engine, checkpoint, learner, options.quantization, options.settings
            )

        for number in range(1, options.syncs + 1):
            again = number == options.syncs and number > 1
            step: StepReport | None = None
            what = "the learner's weights"
            if again:
                what = "the same weights again"
            elif number > 1:
                step = learner.step(_LEARNING_RATE)
                what = "after one optimizer step"
            self._advance(f"sync {number} of {options.syncs}: {what}")
            poisons = self._profile is SMOKE and not again
            last = number == options.syncs
            summary, _ = guard.sync(
                bucket_bytes=limit,
                poison=_PATTERNS[(number - 1) % len(_PATTERNS)] if poisons else None,
                same_weights=again,
                what=what,
                step=step,
                start_cold=cold if last and options.cold_warm else None,
            )
            self._syncs.append(summary)

    def _advance(self, text: str) -> None:
        self.step(text, self._done, _PREPARATIONS + self._options.syncs)
        self._done += 1


def _bucket_bytes(options: SmokeOptions, checkpoint: Checkpoint) -> int:
    if options.bucket_mib is not None:
        return max(1, int(options.bucket_mib * 2**20))
    total = sum(_BYTES * math.prod(entry.shape) for entry in checkpoint.tensors.values())
    return max(1, total // _BUCKETS)


def _environment(
    options: SmokeOptions, checkpoint: Checkpoint, learner: Learner, engine: Engine
) -> Mapping[str, Environment | str]:
    import torch

    import syncguard

    return {
        "syncguard": syncguard.__version__,
        "torch": torch.__version__,
        "model": checkpoint.name,
        "checkpoint": Path(checkpoint.path).name,
        "quantization": options.quantization,
        "seed": str(options.seed),
        "learner": learner.environment(),
        "engine": {
            **engine.environment(),
            **({} if options.process == PROCESSES[0] else {"process": options.process}),
        },
    }
