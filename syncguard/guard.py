"""Runs checks around every sync of a learner and an engine."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.checks import CHECKS, Check
from syncguard.errors import EngineLost
from syncguard.fingerprint import fingerprint
from syncguard.observations import (
    GraphReads,
    Poisoned,
    StepReport,
    StoredTensor,
    SyncRecord,
    WeightPrint,
)
from syncguard.observing import OBSERVERS, SyncContext, View
from syncguard.profiles import SMOKE, Profile
from syncguard.protocols import Engine, Learner
from syncguard.report import SyncSummary
from syncguard.reporting import Listener
from syncguard.rotation import Turns
from syncguard.runner import run_checks
from syncguard.timelimit import TimeLimitExceeded, time_limit
from syncguard.verdict import Verdict

__all__ = ["Bucket", "Guard", "bucketed"]

Bucket = list[tuple[str, torch.Tensor]]
"""One message of a streamed sync: names and tensors."""

_HISTORY = 4
_OPTIONAL_BEFORE = (
    ("preserved_before", "_engine", "preserved"),
    ("learner_state_before", "_learner", "state"),
    ("served_before", "_engine", "served_requests"),
)
"""Name of an observation before the sync, side, and the capability of it that not all have."""


def bucketed(weights: Iterator[tuple[str, torch.Tensor]], limit: int) -> Iterator[Bucket]:
    """Weights in order, in buckets of at most ``limit`` bytes; a larger weight has its own."""
    bucket: Bucket = []
    size = 0
    for name, tensor in weights:
        nbytes = tensor.numel() * tensor.element_size()
        if bucket and size + nbytes > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += nbytes
    if bucket:
        yield bucket


class Guard:
    """Synchronizes a learner's weights into an engine and judges each sync.

    Args:
        learner: The learner.
        engine: The engine.
        listener: Told of every verdict.
        profile: Which checks run, and how deep the probes go.
        checks: The checks to run, if not the profile's.
        timeout_s: Limit for each check.
        vocabulary: Number of tokens to draw prompts from.
        seed: Of prompts, sampling and probes.
    """

    def __init__(
        self,
        learner: Learner,
        engine: Engine,
        listener: Listener,
        *,
        profile: Profile = SMOKE,
        checks: Sequence[Check] | None = None,
        timeout_s: float = 300.0,
        vocabulary: int = 2,
        seed: int = 0,
    ) -> None:
        self._learner = learner
        self._engine = engine
        self._listener = listener
        self._checks = profile.selected() if checks is None else checks
        self._turns = None if profile.probe_layers is None else Turns(profile.probe_layers)
        self._timeout_s = timeout_s
        self._vocabulary = vocabulary
        self._seed = seed
        asked = CHECKS.values() if self._checks is None else self._checks
        self._needs = {need for check in asked for need in check.needs}
        self._number = 0
        self._history: dict[str, Mapping[str, WeightPrint]] = {}
        self._values: dict[str, Mapping[str, NDArray[np.uint64]]] = {}
        self._reads: GraphReads | None = None
        self._storage: Sequence[StoredTensor] | None = None
        self._delivered = True
        self._lost: EngineLost | None = None
        self._context: SyncContext | None = None

    def sync(
        self,
        *,
        bucket_bytes: int,
        poison: int | None = None,
        same_weights: bool = False,
        what: str = "the learner's weights",
        step: StepReport | None = None,
        start_cold: Callable[[], Engine] | None = None,
    ) -> tuple[SyncSummary, list[Verdict]]:
        """Sync once and run the checks.

        Args:
            bucket_bytes: Largest size of a bucket.
            poison: Byte to fill the engine's weights with before; none leaves them.
            same_weights: Whether the weights are those of the sync before. After a sync that
                failed the engine does not hold them, and nothing is compared.
            what: What is sent, in words, for the report.
            step: The optimizer step before this sync, for the report.
            start_cold: Starts another engine on the learner's weights, to compare with.
        """
        started = time.perf_counter()
        self._number += 1
        same_weights = same_weights and self._delivered
        before, failures = self._observe_before(poison, same_weights)
        exported: dict[str, int] = {}
        self._lost = None
        record, tensors, nbytes = self._send(bucket_bytes, exported)
        if self._lost is not None:  # nothing serves: there is no sync to judge
            failures = dict.fromkeys(OBSERVERS, self._lost)
        self._delivered = not record.error
        context = SyncContext(
            record=record,
            storage_before=before.get("storage_before", ()),
            graph_reads=self._reads or GraphReads(frozenset(), captured=False),
            state_before=before.get("state_before", {}),
            layers_before=before.get("engine_layers_before", ()),
            preserved_before=before.get("preserved_before"),
            learner_before=before.get("learner_state_before"),
            served_before=before.get("served_before"),
            exported=exported,
            poisoned=before.get("poisoned"),
            failures=failures,
            start_cold=start_cold,
            turns=self._turns,
            same_weights=same_weights,
            history=dict(reversed(self._history.items())),
            value_history=dict(reversed(self._values.items())),
            vocabulary=self._vocabulary,
            seed=self._seed + self._number,
        )
        self._context = context
        verdicts = self.judge()
        summary = SyncSummary(
            number=record.number,
            version=record.version,
            served_version=record.served_version,
            what=what,
            buckets=len(record.buckets),
            tensors=tensors,
            bytes=nbytes,
            seconds=record.seconds,
            checks_s=max(0.0, time.perf_counter() - started - record.seconds),
            error=record.error,
            step=step,
        )
        return summary, verdicts

    def judge(self) -> list[Verdict]:
        """Run the checks on both sides as they are now, for the last sync.

        Raises:
            RuntimeError: There was no sync yet.
        """
        if self._context is None:
            raise RuntimeError("there is nothing to judge before the first sync")
        view = View(self._learner, self._engine, self._context)
        verdicts = run_checks(
            view,
            checks=self._checks,
            timeout_s=self._timeout_s,
            on_verdict=self._listener.verdict,
        )
        self._remember(self._context.record.version, view)
        self._storage = None if self._turns is None else view.made("storage")
        return verdicts

    def _observe_before(
        self, poison: int | None, same_weights: bool
    ) -> tuple[dict[str, Any], dict[str, BaseException]]:
        """What is noted before the sync, and what could not be: the checks that need it tell.

        A first forward may make or move tensors, so what it reads is observed before where things
        are, and poisoning comes last.
        """
        wanted: dict[str, Callable[[], Any]] = {}
        if self._reads is None:
            wanted["graph_reads"] = self._engine.graph_reads
        # Walking an engine takes as long as comparing all of its weights: where checks run at every
        # sync, what was seen after the last one counts, and what moved while it served shows too.
        if self._storage is None:
            wanted["storage_before"] = self._engine.storage
        if same_weights:
            wanted["state_before"] = self._engine.state
        if "engine_layers_before" in self._needs:
            wanted["engine_layers_before"] = self._engine.layers
        for name, side, capability in _OPTIONAL_BEFORE:
            if name in self._needs and hasattr(getattr(self, side), capability):
                wanted[name] = getattr(getattr(self, side), capability)
        if poison is not None:
            wanted["poisoned"] = functools.partial(self._poisoned, poison)
        made: dict[str, Any] = {} if self._storage is None else {"storage_before": self._storage}
        failures: dict[str, BaseException] = {}
        for name, observe in wanted.items():
            try:
                with time_limit(self._timeout_s):
                    made[name] = observe()
            except (Exception, SystemExit, TimeLimitExceeded) as error:  # noqa: BLE001 - kept
                failures[name] = error
        self._reads = made.get("graph_reads", self._reads)
        return made, failures

    def _send(self, bucket_bytes: int, exported: dict[str, int]) -> tuple[SyncRecord, int, int]:
        tensors = nbytes = 0
        version = str(self._number)
        started = time.perf_counter()
        try:
            self._engine.begin(self._number, version)
            for bucket in bucketed(self._learner.weights(), bucket_bytes):
                tensors += len(bucket)
                nbytes += sum(t.numel() * t.element_size() for _, t in bucket)
                if "exported" in self._needs:
                    exported.update((name, fingerprint(tensor)) for name, tensor in bucket)
                self._engine.send(bucket)
            record = _checked_record(self._engine.finish(), "finish")
        except EngineLost as error:
            self._lost = error
            record = SyncRecord(self._number, version, error=str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the session check judges it
            record = self._abandoned(version, f"{type(error).__name__}: {error}")
        if record.number != self._number:
            told = f"the engine's record is of sync {record.number}"
            record = SyncRecord(self._number, version, error=record.error or told)
        record.seconds = record.seconds or time.perf_counter() - started
        return record, tensors, nbytes

    def _abandoned(self, version: str, error: str) -> SyncRecord:
        """Give up the session; if the engine cannot even do that, the record is ours."""
        try:
            return _checked_record(self._engine.abandon(error), "abandon")
        except (Exception, SystemExit) as second:  # noqa: BLE001 - the session check judges it
            also = f"{error}; then abandon: {type(second).__name__}: {second}"
            return SyncRecord(self._number, version, error=also)

    def _poisoned(self, pattern: int) -> Poisoned:
        nbytes = dict(self._engine.poison(pattern))
        prints = {
            name: held
            for name, held in self._engine.weight_prints().items()
            if isinstance(held, WeightPrint)
        }
        return Poisoned(pattern, nbytes, prints)

    def _remember(self, version: str, view: View) -> None:
        """Keep what the learner held, as far as the checks looked at it."""
        for kept, name in ((self._history, "learner_prints"), (self._values, "learner_values")):
            if (held := view.made(name)) is not None:
                kept[f"version {version}"] = held
            while len(kept) > _HISTORY:
                del kept[next(iter(kept))]


def _checked_record(record: object, method: str) -> SyncRecord:
    """What an adapter gives for a sync, which may be anything.

    Raises:
        TypeError: It is no record.
    """
    if not isinstance(record, SyncRecord):
        raise TypeError(f"{method}() of the adapter must give a SyncRecord, got {record!r}")
    return record
