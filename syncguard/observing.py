"""The observations of one sync, made when a check first asks for them, each once.

The registry maps the names that checks use for their parameters to functions of a `View`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.checks.differences import Difference, differing_rows, find_row
from syncguard.errors import Unsupported
from syncguard.grids import dequantize, quantize
from syncguard.observations import (
    ColdEngine,
    GraphReads,
    Poisoned,
    ProbeReference,
    QuantizedCanary,
    Samples,
    StoredTensor,
    SyncRecord,
    WeightPrint,
)
from syncguard.probes import random_rows
from syncguard.protocols import Engine, Learner

__all__ = ["OBSERVERS", "SyncContext", "View"]

_SAMPLED_ROWS: Final = 8
_PROBE_ROWS: Final = 16
_PROMPTS: Final = 8
_PROMPT_TOKENS: Final = 8
_NEW_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class SyncContext:
    """What was noted before and during a sync.

    Attributes:
        record: The engine's record.
        storage_before: The storage table before the sync.
        graph_reads: What a forward reads.
        state_before: Fingerprints of all reachable tensors before; empty if not taken.
        poisoned: What poisoning left, if the engine was poisoned.
        failures: Name of an observation that was to be made before the sync to why it failed.
        start_cold: Starts an engine on the learner's weights; none unless it is asked for.
        same_weights: Whether the sync sent the weights of the one before.
        history: Label of an earlier version to the learner's prints of that time, newest first.
        value_history: The same for the learner's value prints.
        vocabulary: Number of tokens to draw prompts from.
        seed: Of prompts, sampling and probes.
    """

    record: SyncRecord
    storage_before: Sequence[StoredTensor]
    graph_reads: GraphReads
    state_before: Mapping[str, int] = field(default_factory=dict)
    poisoned: Poisoned | None = None
    start_cold: Callable[[], Engine] | None = None
    failures: Mapping[str, Exception] = field(default_factory=dict)
    same_weights: bool = False
    history: Mapping[str, Mapping[str, WeightPrint]] = field(default_factory=dict)
    value_history: Mapping[str, Mapping[str, NDArray[np.uint64]]] = field(default_factory=dict)
    vocabulary: int = 2
    seed: int = 0


class View:
    """Observations by name; a failed observation fails again for every check that needs it.

    Args:
        learner: The learner.
        engine: The engine.
        context: What was noted before and during the sync.
    """

    def __init__(self, learner: Learner, engine: Engine, context: SyncContext) -> None:
        self.learner = learner
        self.engine = engine
        self.context = context
        self._made: dict[str, Any] = {}
        self._failed = dict(context.failures)
        self._depth = 0
        self.seconds = 0.0

    def get(self, name: str) -> Any:
        """Make an observation, or return it if it was made.

        Raises:
            KeyError: No observer has this name.
            Exception: What the observer raised, each time.
        """
        if name in self._made:
            return self._made[name]
        if name in self._failed:
            raise self._failed[name]
        started = time.perf_counter()
        self._depth += 1
        try:
            self._made[name] = OBSERVERS[name](self)
        except Exception as error:
            self._failed[name] = error
            raise
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds += time.perf_counter() - started
        return self._made[name]


def _differences(view: View) -> list[Difference]:
    learner, engine = view.get("learner_prints"), view.get("weight_prints")
    candidates = {"this version": learner, **view.context.history}
    found = []
    for weight, mine in learner.items():
        theirs = engine.get(weight)
        if not isinstance(theirs, WeightPrint):
            continue
        rows = differing_rows(mine, theirs)
        if rows is None or not rows.size:
            continue
        sampled = tuple(int(row) for row in rows[:_SAMPLED_ROWS])
        grid = view.learner.grid_tensors(weight)
        vector = len(mine.shape) < 2
        first = {name: int(values[sampled[0]]) for name, values in theirs.rows.items()}
        found.append(
            Difference(
                weight=weight,
                rows=rows,
                total=next(iter(mine.rows.values())).size,
                sampled=sampled,
                learner={k: t if vector else t[list(sampled)] for k, t in grid.items()},
                engine=view.engine.fetch_rows(weight, [] if vector else sampled),
                origin=find_row(first, candidates, weight),
            )
        )
    return found


def _random_probe(view: View) -> list[ProbeReference]:
    activations = {layer.module: layer.activations for layer in view.get("engine_layers")}
    seed = view.context.seed
    references = []
    for output in view.engine.probe_random(_PROBE_ROWS, seed):
        weight = torch.cat([view.learner.dequantized(part) for part in output.parts])
        x = random_rows(_PROBE_ROWS, weight.shape[1], seed, weight.dtype)
        rounded = activations.get(output.module) == "mxfp8"
        used = dequantize(*quantize(x), dtype=torch.float32) if rounded else x.float()
        matrix = weight.float().T
        plain, emulated = x.float() @ matrix, used @ matrix
        slack = used.abs() @ matrix.abs()
        unit = 2 * torch.finfo(weight.dtype).eps / 2
        bound = unit * emulated.abs() + 2 * weight.shape[1] * 2.0**-24 * slack
        got = torch.from_numpy(output.output)
        worst = ((got - emulated).abs() / bound.clamp_min(1e-30)).max()
        references.append(
            ProbeReference(
                module=output.module,
                parts=output.parts,
                worst=float(worst),
                error=float((got - plain).norm() / plain.norm()),
                healthy=float((emulated - plain).norm() / plain.norm()),
                nbytes=sum(view.get("learner_prints")[part].nbytes for part in output.parts),
            )
        )
    return references


def _samples(view: View) -> Samples:
    if view.context.record.error:
        raise Unsupported("the sync ended with an error, so the engine must not serve")
    generator = np.random.default_rng(view.context.seed)
    shape = (_PROMPTS, _PROMPT_TOKENS)
    prompts = generator.integers(0, view.context.vocabulary, shape).tolist()
    answers = view.engine.generate(prompts, _NEW_TOKENS, view.context.seed)
    sequences = tuple(tuple(sequence) for sequence, _ in answers)
    learner = {layer.weight: layer.grid for layer in view.get("learner_layers")}
    rounds = any(
        layer.activations == learner.get(layer.parts[0]) == "mxfp8"
        for layer in view.get("engine_layers")
    )
    scored = {
        mode: np.concatenate(view.learner.logprobs(sequences, mode=mode))
        for mode in ("forward", "dequantized", "float32")
    }
    engine = np.concatenate([scores for _, scores in answers])
    if any(values.shape != engine.shape for values in scored.values()):
        raise ValueError("engine and learner scored different numbers of tokens")
    return Samples(
        sequences=sequences,
        engine=engine,
        learner=scored["forward"],
        dequantized=scored["dequantized"],
        float32=scored["float32"],
        rounds_activations=rounds,
    )


def _optional(side: Any, capability: str) -> Any:
    """Ask for what only some adapters offer; none where it is not offered."""
    ask = getattr(side, capability, None)
    return None if ask is None else ask()


def _canary(view: View, side: Any) -> QuantizedCanary | None:
    return _optional(side, "quantize_canary") if view.get("first_sync") else None


def _cold_engine(view: View) -> ColdEngine | None:
    if view.context.start_cold is None:
        return None
    engine = view.context.start_cold()
    try:
        return ColdEngine(dict(engine.state()), dict(engine.probe_exact()))
    finally:
        engine.close()


def _manifest(view: View) -> dict[str, str]:
    layers = view.get("learner_layers")
    return {
        name: layer.weight for layer in layers for name in view.learner.wire_names(layer.weight)
    }


_OBSERVERS: Final[dict[str, Callable[[View], Any]]] = {
    "canary_engine": lambda view: _canary(view, view.engine),
    "canary_learner": lambda view: _canary(view, view.learner),
    "cold_engine": _cold_engine,
    "differences": _differences,
    "engine_layers": lambda view: view.engine.layers(),
    "exact_probe": lambda view: view.engine.probe_exact(),
    "first_sync": lambda view: view.context.record.number == 1,
    "graph_reads": lambda view: view.context.graph_reads,
    "learner_layers": lambda view: view.learner.layers(),
    "learner_prints": lambda view: view.learner.prints(),
    "learner_values": lambda view: view.learner.value_prints(),
    "manifest": _manifest,
    "poisoned": lambda view: view.context.poisoned,
    "random_probe": _random_probe,
    "rederived": lambda view: view.engine.rederive(),
    "same_weights": lambda view: view.context.same_weights,
    "samples": _samples,
    "state": lambda view: view.engine.state() if view.context.same_weights else {},
    "state_before": lambda view: view.context.state_before,
    "storage": lambda view: view.engine.storage(),
    "storage_before": lambda view: view.context.storage_before,
    "sync_record": lambda view: view.context.record,
    "value_history": lambda view: view.context.value_history,
    "warm_state": lambda view: view.engine.state() if view.context.start_cold else {},
    "weight_prints": lambda view: view.engine.weight_prints(),
}

OBSERVERS: Final = MappingProxyType(_OBSERVERS)
"""Name of an observation to the function that makes it."""
