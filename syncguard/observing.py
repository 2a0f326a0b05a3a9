"""The observations of one sync, made when a check first asks for them, each once.

The registry maps the names that checks use for their parameters to functions of a `View`.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from syncguard.checks.differences import differing_rows
from syncguard.differing import differences
from syncguard.errors import Unsupported
from syncguard.fingerprint import fingerprint
from syncguard.grids import rounds_activations
from syncguard.observations import (
    Alternatives,
    ColdEngine,
    EngineLayer,
    GraphReads,
    Poisoned,
    QuantizedCanary,
    Samples,
    ServedRequest,
    StoredTensor,
    SyncRecord,
    WeightPrint,
)
from syncguard.probing import (
    block_probe,
    byte_ranks,
    flushed_values,
    probe_ranks,
    random_probe,
    rotation,
)
from syncguard.protocols import Engine, Learner
from syncguard.rotation import Turns
from syncguard.timelimit import TimeLimitExceeded

__all__ = ["OBSERVERS", "SyncContext", "View"]

_PROMPTS: Final = 8
_PROMPT_TOKENS: Final = 8
_NEW_TOKENS: Final = 16
_TEMPERATURES: Final = (0.25, 0.5, 0.75, 1.5, 2.0, 4.0, 1e6)
"""At the last one all tokens are equally likely, but for those that have no probability at all."""


@dataclass(frozen=True, slots=True)
class SyncContext:
    """What was noted before and during a sync.

    Attributes:
        record: The engine's record.
        storage_before: The storage table before the sync.
        graph_reads: What a forward reads.
        state_before: Fingerprints of all reachable tensors before; empty if not taken.
        layers_before: The engine's layer table before; empty if not taken.
        preserved_before: Fingerprints of what no sync brings, before; none if not taken.
        learner_before: The learner's state before; none if not taken.
        served_before: Requests that the engine had answered before; none if not taken.
        exported: Name on the wire to the fingerprint of the tensor that was sent.
        poisoned: What poisoning left, if the engine was poisoned.
        failures: Name of an observation that was to be made before the sync to why it failed.
        turns: Hands out layers for a budgeted probe; none where every layer is probed exactly.
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
    layers_before: Sequence[EngineLayer] = ()
    preserved_before: Mapping[str, int] | None = None
    learner_before: Mapping[str, int] | None = None
    served_before: Sequence[ServedRequest] | None = None
    exported: Mapping[str, int] = field(default_factory=dict)
    poisoned: Poisoned | None = None
    turns: Turns | None = None
    start_cold: Callable[[], Engine] | None = None
    failures: Mapping[str, BaseException] = field(default_factory=dict)
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
        self._failed: dict[str, BaseException] = dict(context.failures)
        self._depth = 0
        self.seconds = 0.0

    def get(self, name: str) -> Any:
        """Make an observation, or return it if it was made.

        Raises:
            KeyError: No observer has this name.
            Exception: What the observer raised, each time.
            TimeLimitExceeded: It took too long when it was asked for first.
        """
        if name in self._made:
            return self._made[name]
        if name in self._failed:
            raise self._failed[name]
        started = time.perf_counter()
        self._depth += 1
        try:
            self._made[name] = OBSERVERS[name](self)
        except (Exception, SystemExit, TimeLimitExceeded) as error:
            self._failed[name] = error
            raise
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds += time.perf_counter() - started
        return self._made[name]

    def made(self, name: str) -> Any:
        """An observation if it was made, else none."""
        return self._made.get(name)


def _samples(view: View) -> Samples:
    if view.context.record.error:
        raise Unsupported("the sync ended with an error, so the engine must not serve")
    generator = np.random.default_rng(view.context.seed)
    shape = (_PROMPTS, _PROMPT_TOKENS)
    prompts = generator.integers(0, view.context.vocabulary, shape).tolist()
    answers = view.engine.generate(prompts, _NEW_TOKENS, view.context.seed)
    sequences = tuple(tuple(sequence) for sequence, _ in answers)
    asked = [_PROMPT_TOKENS + _NEW_TOKENS] * _PROMPTS
    if [len(sequence) for sequence in sequences] != asked:
        raise ValueError(
            f"{_PROMPTS} sequences of {asked[0]} tokens were asked for, and {len(sequences)} came, "
            f"of {', '.join(str(len(each)) for each in sequences) or 'none'}"
        )
    for number, (prompt, sequence) in enumerate(zip(prompts, sequences, strict=True)):
        if list(sequence[:_PROMPT_TOKENS]) != prompt:
            raise ValueError(f"answer {number} does not begin with prompt {number}")
    learner = {layer.weight: layer.grid for layer in view.get("learner_layers")}
    rounds = any(
        layer.activations == learner.get(part) and rounds_activations(layer.activations)
        for layer in view.get("engine_layers")
        for part in layer.parts
    )
    scored = {
        mode: np.concatenate([np.zeros(0), *view.learner.logprobs(sequences, mode=mode)])
        for mode in ("forward", "dequantized", "float32")
    }
    engine = np.concatenate([np.zeros(0), *(scores for _, scores in answers)])
    if any(values.shape != engine.shape for values in scored.values()):
        raise ValueError("engine and learner scored different numbers of tokens")
    return Samples(
        sequences=sequences,
        engine=engine,
        learner=scored["forward"],
        dequantized=scored["dequantized"],
        float32=scored["float32"],
        rounds_activations=rounds,
        prompt_tokens=_PROMPT_TOKENS,
    )


def _alternatives(view: View) -> Alternatives | None:
    tempered = getattr(view.learner, "tempered", None)
    if tempered is None:
        return None
    sequences = view.get("samples").sequences
    empty = np.zeros((0, len(_TEMPERATURES)))
    found = np.concatenate([empty, *tempered(sequences, _TEMPERATURES)])
    if len(found) != sum(len(each) - 1 for each in sequences):
        raise ValueError(f"the learner told {len(found)} tokens of {len(sequences)} sequences")
    return Alternatives(_TEMPERATURES, found)


def _has_packed(view: View) -> bool:
    """Whether the bytes of some weight cannot be compared, so that only its kernel can tell.

    What the learner has no weight for is not compared at all.
    """
    learner = view.get("learner_prints")
    return any(
        not isinstance(held, WeightPrint) or differing_rows(learner[held.weight], held) is None
        for held in view.get("weight_prints").values()
        if held.weight in learner
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
        probe = dict(engine.probe_exact())  # first: it may build what is built at first use
        return ColdEngine(dict(engine.state()), probe)
    finally:
        engine.close()


def _warm_state(view: View) -> Mapping[str, int]:
    if view.context.start_cold is None:
        return {}
    with contextlib.suppress(Exception):  # as on the cold side; other checks tell why not
        view.get("exact_probe")
    return view.engine.state()


def _after_use(view: View, observe: Callable[[], Any]) -> Any:
    """Observe once the engine has answered requests; none after a sync that failed."""
    if view.context.record.error:
        return None
    with contextlib.suppress(Exception):  # other checks tell why there are no samples
        view.get("samples")
    return observe()


def _wire(view: View) -> dict[str, int]:
    """Fingerprint of what each name on the wire should carry, by the learner's own tensors.

    One name may carry the weight itself, or its forward grid's values.
    """
    state = view.get("learner_state")
    found = {}
    for layer in view.get("learner_layers") if state is not None else ():
        names = view.learner.wire_names(layer.weight)
        if len(names) == 1 and layer.weight in state:
            sent, own = view.context.exported.get(names[0]), state[layer.weight]
            alike = sent == own or sent == fingerprint(view.learner.dequantized(layer.weight))
            found[names[0]] = sent if sent is not None and alike else own
        elif len(names) > 1:
            parts = view.learner.grid_tensors(layer.weight).values()
            found |= {n: fingerprint(part) for n, part in zip(names, parts, strict=True)}
    return found


def _manifest(view: View) -> dict[str, str]:
    layers = view.get("learner_layers")
    return {
        name: layer.weight for layer in layers for name in view.learner.wire_names(layer.weight)
    }


_OBSERVERS: Final[dict[str, Callable[[View], Any]]] = {
    "admits": lambda view: _optional(view.engine, "admits"),
    "alternatives": _alternatives,
    "block_probe": block_probe,
    "byte_ranks": byte_ranks,
    "cached_versions": lambda view: _after_use(
        view, lambda: _optional(view.engine, "cache_versions")
    ),
    "canary_engine": lambda view: _canary(view, view.engine),
    "canary_learner": lambda view: _canary(view, view.learner),
    "checkpoint_state": lambda view: _optional(view.learner, "checkpoint_state"),
    "cold_engine": _cold_engine,
    "differences": differences,
    "engine_layers": lambda view: view.engine.layers(),
    "engine_layers_before": lambda view: view.context.layers_before,
    "exact_probe": lambda view: view.engine.probe_exact(),
    "exported": lambda view: view.context.exported,
    "first_sync": lambda view: view.context.record.number == 1,
    "flushed_values": flushed_values,
    "graph_reads": lambda view: view.context.graph_reads,
    "learner_layers": lambda view: view.learner.layers(),
    "learner_prints": lambda view: view.learner.prints(),
    "learner_state": lambda view: _optional(view.learner, "state"),
    "learner_state_before": lambda view: view.context.learner_before,
    "learner_values": lambda view: view.learner.value_prints(),
    "manifest": _manifest,
    "packed_probe": lambda view: view.get("exact_probe") if _has_packed(view) else {},
    "packed_values": lambda view: view.get("learner_values") if _has_packed(view) else {},
    "preserved": lambda view: _optional(view.engine, "preserved"),
    "preserved_before": lambda view: view.context.preserved_before,
    "probe_ranks": probe_ranks,
    "prints_at_use": lambda view: _after_use(view, view.engine.weight_prints),
    "poisoned": lambda view: view.context.poisoned,
    "random_probe": random_probe,
    "rederived": lambda view: view.engine.rederive(),
    "rotation": rotation,
    "served_before": lambda view: view.context.served_before,
    "served_requests": lambda view: _optional(view.engine, "served_requests"),
    "same_weights": lambda view: view.context.same_weights,
    "samples": _samples,
    "state": lambda view: view.engine.state() if view.context.same_weights else {},
    "state_before": lambda view: view.context.state_before,
    "storage": lambda view: view.engine.storage(),
    "storage_before": lambda view: view.context.storage_before,
    "sync_record": lambda view: view.context.record,
    "value_history": lambda view: view.context.value_history,
    "version_at_use": lambda view: _after_use(view, lambda: _optional(view.engine, "version")),
    "warm_state": _warm_state,
    "weight_prints": lambda view: view.engine.weight_prints(),
    "wire": _wire,
}

OBSERVERS: Final = MappingProxyType(_OBSERVERS)
"""Name of an observation to the function that makes it."""
