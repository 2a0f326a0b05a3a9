"""The observations of one sync, made when a check first asks for them, each once.

The registry maps the names that checks use for their parameters to functions of a `View`.
"""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.checks.differences import Difference, differing_rows, find_row
from syncguard.checks.hypotheses import reason_for
from syncguard.errors import Unsupported
from syncguard.fingerprint import fingerprint, value_print
from syncguard.grids import dequantize, quantize
from syncguard.observations import (
    BlockProbe,
    ColdEngine,
    EngineLayer,
    GraphReads,
    Place,
    Poisoned,
    ProbeOutput,
    ProbeReference,
    ProbeTurn,
    QuantizedCanary,
    Rotation,
    Samples,
    ServedRequest,
    StoredTensor,
    SyncRecord,
    Unreadable,
    WeightPrint,
)
from syncguard.probes import flushed, narrowed, random_rows, turn_rows
from syncguard.protocols import Engine, Learner
from syncguard.rotation import Turns
from syncguard.shards import component_prints, differing_ranks, value_prints_of
from syncguard.timelimit import TimeLimitExceeded

__all__ = ["OBSERVERS", "SyncContext", "View"]

Rows = Callable[[torch.Tensor], torch.Tensor]

_SAMPLED_ROWS: Final = 8
_ROWS_PER_FETCH: Final = 1024
_EXPLAINED: Final = 4
"""Weights for whose difference a reason is looked for."""
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


def _differences(view: View) -> list[Difference]:
    learner, engine = view.get("learner_prints"), view.get("weight_prints")
    candidates = {"this version": learner, **view.context.history}
    found: dict[str, Difference] = {}
    for key, theirs in engine.items():
        mine = learner.get(theirs.weight)
        if not isinstance(theirs, WeightPrint) or mine is None:
            continue
        rows = differing_rows(mine, theirs)
        if rows is None or not rows.size:
            continue
        difference = _first_copy(engine, found, key) or _fetched(view, key, mine, rows)
        row = difference.sampled[0]
        prints = {name: int(values[row]) for name, values in theirs.rows.items()}
        origin = find_row(prints, candidates, theirs.weight)
        found[key] = replace(difference, weight=key, rows=rows, origin=origin)
    for key, difference in _unexplained(found):
        found[key] = replace(difference, reason=_reason(view, engine[key].weight, difference))
    return list(found.values())


def _unexplained(found: Mapping[str, Difference]) -> list[tuple[str, Difference]]:
    """A few that hold nothing that is known: looking for a reason reads the learner's export."""
    matrices = [
        (key, difference)
        for key, difference in found.items()
        if not difference.origin and all(t.ndim == 2 for t in difference.engine.values())
    ]
    return matrices[:_EXPLAINED]


def _reason(view: View, weight: str, difference: Difference) -> str:
    with contextlib.suppress(Exception):  # the difference is told without it
        for name, tensor in view.learner.weights():
            if name == weight and tensor.dtype.itemsize > 1:
                return reason_for(tensor, difference.sampled, difference.engine)
    return ""


def _first_copy(
    engine: Mapping[str, WeightPrint | Unreadable], found: Mapping[str, Difference], key: str
) -> Difference | None:
    """What was found of the first copy of a weight, if a further one holds the same."""
    first, copy = engine.get(engine[key].weight), engine[key]
    if first is copy or not (isinstance(first, WeightPrint) and isinstance(copy, WeightPrint)):
        return None
    rows = differing_rows(first, copy)
    return found.get(first.weight) if rows is not None and not rows.size else None


def _fetched(view: View, key: str, mine: WeightPrint, rows: NDArray[np.int64]) -> Difference:
    """Fetch differing rows until their values differ; a difference in encoding needs all rows."""
    grid = view.learner.grid_tensors(mine.weight)
    total = next(iter(mine.rows.values())).size
    worst: Difference | None = None
    first = 0
    while first < rows.size and not (worst and worst.values_differ):
        chunk = rows[first : first + (_ROWS_PER_FETCH if first else _SAMPLED_ROWS)].tolist()
        first += len(chunk)
        engine = _rows_of_engine(view, key, [] if len(mine.shape) < 2 else chunk)
        learner = {name: _rows_of(tensor, chunk) for name, tensor in grid.items()}
        found = Difference(key, rows, total, tuple(chunk), learner, engine)
        if worst is None or (worst.neutral and not found.neutral) or found.values_differ:
            worst = found
    assert worst is not None, "there are differing rows"  # noqa: S101
    return worst.narrowed(_SAMPLED_ROWS)


def _rows_of(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Rows as `syncguard.fingerprint.row_prints` counts them; a vector comes whole."""
    return tensor if tensor.ndim < 2 else tensor.reshape(-1, tensor.shape[-1])[list(rows)]


def _rows_of_engine(view: View, key: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
    """Rows of the engine, or none: that they differ is known, and not to be lost by a failure."""
    try:
        return view.engine.fetch_rows(key, rows)
    except Exception:  # noqa: BLE001 - the difference is told without them
        return {}


def _random_probe(view: View) -> list[ProbeReference]:
    activations = {layer.module: layer.activations for layer in view.get("engine_layers")}
    seed = view.context.seed
    references = []
    for output in view.engine.probe_random(_PROBE_ROWS, seed):
        weight, own = _probed(view, output)
        x = own(random_rows(_PROBE_ROWS, _width(view, output), seed, weight.dtype))
        rounded = activations.get(output.module) == "mxfp8"
        used = dequantize(*quantize(x), dtype=torch.float32) if rounded else x.float()
        matrix = weight.float().T
        plain, emulated = x.float() @ matrix, used @ matrix
        slack = used.abs() @ matrix.abs()
        unit = torch.finfo(weight.dtype).eps
        bound = unit * emulated.abs() + 2 * weight.shape[1] * 2.0**-24 * slack
        got = torch.from_numpy(output.output)
        worst = ((got - emulated).abs() / bound.clamp_min(1e-30)).max()
        references.append(
            ProbeReference(
                module=_on_rank(view, output),
                parts=output.parts,
                worst=float(worst),
                error=_relative_error(got, plain),
                healthy=_relative_error(emulated, plain),
                nbytes=_covered(view, output),
            )
        )
    return references


def _probed(view: View, output: ProbeOutput) -> tuple[torch.Tensor, Rows]:
    """The learner's weight that a serving path was asked for, and how to cut rows to its inputs."""
    whole = [view.learner.dequantized(part) for part in output.parts]
    if not output.places:
        return torch.cat(whole), lambda rows: rows
    pairs = zip(output.places, whole, strict=True)
    first, last = output.places[0].columns
    return torch.cat([place.of(part) for place, part in pairs]), lambda rows: rows[:, first:last]


def _width(view: View, output: ProbeOutput) -> int:
    """Input features of a whole layer; read from its print, since a weight costs a pass."""
    width: int = view.get("learner_prints")[output.parts[0]].shape[1]
    return width


def _covered(view: View, output: ProbeOutput) -> int:
    """Bytes of the learner's weights that a serving path was asked for."""
    prints = view.get("learner_prints")
    if not output.places:
        return sum(prints[part].nbytes for part in output.parts)
    pairs = zip(output.places, output.parts, strict=True)
    return sum(prints[part].nbytes * place.numel // math.prod(place.shape) for place, part in pairs)


def _on_rank(view: View, output: ProbeOutput) -> str:
    """The module's path, with the rank that answered where there are several."""
    ranks = {layer.rank for layer in view.get("engine_layers")}
    return f"rank{output.rank}:{output.module}" if len(ranks) > 1 else output.module


def _relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative Frobenius error; a layer of zeros that gives zeros has none."""
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


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
    learner = {layer.weight: layer.grid for layer in view.get("learner_layers")}
    rounds = any(
        layer.activations == learner.get(part) == "mxfp8"
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
    )


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


def _rotation(view: View) -> Rotation | None:
    if view.context.turns is None:
        return None
    layers = view.get("learner_layers")
    looked_up = {layer.weight for layer in layers if layer.kind == "embedding"}
    return view.context.turns.take(view.get("engine_layers"), looked_up)


def _block_probe(view: View) -> list[BlockProbe]:
    rotation = view.get("rotation")
    if rotation is None:
        return []
    turns = _turns(view, rotation)
    probes = []
    for output in view.engine.probe_blocks(turns):
        weight, own = _probed(view, output)
        rows = turn_rows(turns[output.module], _width(view, output), weight.dtype)
        wanted = own(rows).float() @ weight.float().T
        got = torch.from_numpy(output.output)
        # Outputs are rounded once. Products in bf16 flush subnormals on several devices.
        tiny = torch.finfo(weight.dtype).smallest_normal
        gap = (got - wanted.to(weight.dtype).float()).abs()
        differing = ~(gap < tiny)  # so that NaN differs
        first = differing.nonzero()[:1].tolist()
        probes.append(
            BlockProbe(
                module=_on_rank(view, output),
                parts=output.parts,
                wrong=int(differing.sum()),
                outputs=differing.numel(),
                where=f"row {first[0][1]}, block {first[0][0]}" if first else "",
            )
        )
    return probes


def _byte_ranks(view: View) -> dict[str, tuple[int, ...]]:
    """Which ranks hold other bytes than the learner, where several share a weight."""
    prints = view.get("learner_prints")

    def part(weight: str, place: Place) -> dict[str, NDArray[np.uint64]]:
        grid = view.learner.grid_tensors(weight)
        return {name: component_prints(name, place.of(t), place) for name, t in grid.items()}

    def whole(weight: str) -> Mapping[str, NDArray[np.uint64]] | None:
        return prints[weight].rows if weight in prints else None

    return differing_ranks(view.get("weight_prints"), whole, part)


def _probe_ranks(view: View) -> dict[str, tuple[int, ...]]:
    """Which ranks compute with other values than the learner, where several share a weight."""
    values = view.get("learner_values")

    def part(weight: str, place: Place) -> dict[str, NDArray[np.uint64]]:
        return {
            "values": value_prints_of(place.of(narrowed(view.learner.dequantized(weight))), place)
        }

    def whole(weight: str) -> Mapping[str, NDArray[np.uint64]] | None:
        return {"values": values[weight]} if weight in values else None

    return differing_ranks(view.get("exact_probe"), whole, part)


def _flushed_values(view: View) -> dict[str, NDArray[np.uint64]]:
    """Values without subnormals, of weights that are not served as they are: why it may be so."""
    values, found = view.get("learner_values"), {}
    for held in view.get("exact_probe").values():
        wanted = values.get(held.weight)
        if not isinstance(held, WeightPrint) or wanted is None or held.weight in found:
            continue
        if not np.array_equal(held.rows["values"], wanted):
            weight = flushed(narrowed(view.learner.dequantized(held.weight)))
            if weight is not None:
                found[held.weight] = value_print(weight)
    return found


def _turns(view: View, rotation: Rotation) -> dict[str, ProbeTurn]:
    """Sums for low-precision layers, where they are exact; for all others rows of the identity."""
    grids = {layer.weight: layer.grid for layer in view.get("learner_layers")}
    parts = {layer.module: layer.parts for layer in view.get("engine_layers")}
    turns = {}
    for module, before in rotation.chosen.items():
        sums = all(grids.get(part) == "mxfp8" for part in parts[module])
        turns[module] = ProbeTurn(sums, view.context.seed if sums else before)
    return turns


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
    "block_probe": _block_probe,
    "byte_ranks": _byte_ranks,
    "cached_versions": lambda view: _after_use(
        view, lambda: _optional(view.engine, "cache_versions")
    ),
    "canary_engine": lambda view: _canary(view, view.engine),
    "canary_learner": lambda view: _canary(view, view.learner),
    "checkpoint_state": lambda view: _optional(view.learner, "checkpoint_state"),
    "cold_engine": _cold_engine,
    "differences": _differences,
    "engine_layers": lambda view: view.engine.layers(),
    "engine_layers_before": lambda view: view.context.layers_before,
    "exact_probe": lambda view: view.engine.probe_exact(),
    "exported": lambda view: view.context.exported,
    "first_sync": lambda view: view.context.record.number == 1,
    "flushed_values": _flushed_values,
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
    "probe_ranks": _probe_ranks,
    "prints_at_use": lambda view: _after_use(view, view.engine.weight_prints),
    "poisoned": lambda view: view.context.poisoned,
    "random_probe": _random_probe,
    "rederived": lambda view: view.engine.rederive(),
    "rotation": _rotation,
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
