"""C1: the sampler quantizes exactly the layers that the learner runs in low precision."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.matching import MATRICES
from syncguard.checks.registry import check
from syncguard.grids import GRIDS
from syncguard.observations import EngineLayer, LearnerLayer
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["layer_set"]

_PLAIN: Final = frozenset(name for name, grid in GRIDS.items() if grid.plain)

Held = Mapping[str, Sequence[EngineLayer]]


@check("layer-set", "C1")
def layer_set(
    learner_layers: Sequence[LearnerLayer], engine_layers: Sequence[EngineLayer]
) -> Judgement:
    """Compare the grids that both sides' live layers compute in, weight by weight, on each rank.

    Both tables are observed: the learner's from a forward, the engine's from the live modules'
    quantization methods and kernels. A configuration list or a parameter's dtype is neither.
    Two formats without scales count as the same grid: whether bf16 values survive in a float32
    parameter is a matter of values, which C2 compares.
    """
    learner = {layer.weight: layer for layer in learner_layers}
    required = {weight for weight, layer in learner.items() if layer.kind in MATRICES}
    if not required or not engine_layers:
        side = "the learner" if not required else "the engine"
        return not_run(Reason.MISSING_INPUT, f"{side} reported no layers")
    engine = _held(learner, engine_layers)
    deviating = {
        weight: [layer for layer in held if layer.grid != learner[weight].grid]
        for weight, held in engine.items()
        if weight in learner
    }
    wrong = {
        weight: layers
        for weight, held in deviating.items()
        if (layers := [x for x in held if _quantized(x) or _quantized(learner[weight])])
    }
    missing = sorted(required - engine.keys())
    unknown = sorted(engine.keys() - learner.keys())
    coverage = Coverage(len(required & engine.keys()), len(required | engine.keys()))
    count = len(wrong) + len(missing) + len(unknown)
    ranks = {layer.rank for layer in engine_layers}
    if not count:
        low = sum(_quantized(learner[weight]) for weight in required)
        return passed(
            f"{low} of {counted(len(required), 'layer is', 'layers are')} quantized on both sides, "
            "the same ones",
            coverage,
            measured=0,
            bound=0,
            evidence=[
                (weight, f"{_grids(learner[weight], held, ranks)}; neither is quantized")
                for weight, held in sorted(deviating.items())
                if held
            ],
        )
    return failed(
        _message(wrong, missing, unknown, learner),
        coverage,
        subject=min([*wrong, *missing, *unknown]),
        measured=count,
        bound=0,
        evidence=[
            *((weight, _grids(learner[weight], wrong[weight], ranks)) for weight in sorted(wrong)),
            *((weight, "the engine has no such layer") for weight in missing),
            *((weight, "the learner has no such layer") for weight in unknown),
        ],
    )


def _quantized(layer: LearnerLayer | EngineLayer) -> bool:
    return layer.grid not in _PLAIN


def _held(learner: Mapping[str, LearnerLayer], engine_layers: Sequence[EngineLayer]) -> Held:
    """The engine's layers by weight, of all ranks; a tied weight may live under the other name."""
    held: dict[str, list[EngineLayer]] = defaultdict(list)
    for layer in engine_layers:
        for weight in layer.parts:
            held[weight].append(layer)
    shared = {
        weight: held[layer.tied_to]
        for weight, layer in learner.items()
        if weight not in held and layer.tied_to in held
    }
    return {**held, **shared}


def _grids(learner: LearnerLayer, engine: Sequence[EngineLayer], ranks: set[int]) -> str:
    """Both sides' grids in words, with the ranks that deviate where there are several."""
    by_grid: dict[str, set[int]] = defaultdict(set)
    for layer in engine:
        by_grid[layer.grid].add(layer.rank)
    told = []
    for grid, on in sorted(by_grid.items()):
        where = f" on {_ranks(on)}" if len(ranks) > 1 else ""
        told.append(f"{grid}{where}")
    return f"learner {learner.grid}, engine {' and '.join(told)}"


def _ranks(ranks: set[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed(list(map(str, sorted(ranks))))}"


def _message(
    wrong: Held,
    missing: Sequence[str],
    unknown: Sequence[str],
    learner: Mapping[str, LearnerLayer],
) -> str:
    plain = sorted(weight for weight, held in wrong.items() if held[0].grid in _PLAIN)
    low = sorted(wrong.keys() - set(plain))
    got = [
        *([f"the engine leaves unquantized: {listed(plain)}"] if plain else []),
        *([f"the engine quantizes: {listed(low)}"] if low else []),
        *([f"the engine has no: {listed(missing)}"] if missing else []),
        *([f"the learner has no: {listed(unknown)}"] if unknown else []),
    ]
    methods = sorted({layer.method for held in wrong.values() for layer in held})
    causes = [
        *(["an exclusion pattern matches more than was meant"] if plain else []),
        *(["lm_head, embedding or router is missing from the exclusions"] if low else []),
        *(["names of the two sides do not map to each other"] if missing or unknown else []),
    ]
    names = sorted([*wrong, *missing, *unknown])
    return explain(
        f"{counted(len(names), 'layer differs', 'layers differ')} between learner and engine",
        where=listed(names),
        expected="the grids of the learner's forward: "
        + (listed([f"{w} {learner[w].grid}" for w in sorted(wrong)]) or "every layer present"),
        got="; ".join(got) + (f" (live methods: {', '.join(methods)})" if methods else ""),
        cause="; ".join(causes),
        todo="compare the engine's exclusion list with the learner's filter; ask the live modules, "
        "not the configuration, after every change of either",
    )
