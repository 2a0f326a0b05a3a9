"""C1: the sampler quantizes exactly the layers that the learner runs in low precision."""

from collections.abc import Mapping, Sequence
from typing import Final

from syncguard.checks.judgement import Judgement, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import EngineLayer, LearnerLayer
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["layer_set"]

_MATRICES: Final = frozenset({"linear", "head", "embedding", "expert", "router"})


@check("layer-set", "C1")
def layer_set(
    learner_layers: Sequence[LearnerLayer], engine_layers: Sequence[EngineLayer]
) -> Judgement:
    """Compare the grids that both sides' live layers compute in, weight by weight.

    Both tables are observed: the learner's from a forward, the engine's from the live modules'
    quantization methods and kernels. A configuration list or a parameter's dtype is neither.
    """
    learner = {layer.weight: layer for layer in learner_layers if layer.kind in _MATRICES}
    if not learner or not engine_layers:
        side = "the learner" if not learner else "the engine"
        return not_run(Reason.MISSING_INPUT, f"{side} reported no layers")
    engine = {weight: layer for layer in engine_layers for weight in layer.parts}
    wrong = {
        weight: (learner[weight].grid, engine[weight].grid)
        for weight in learner.keys() & engine.keys()
        if learner[weight].grid != engine[weight].grid
    }
    missing = sorted(learner.keys() - engine.keys())
    unknown = sorted(engine.keys() - learner.keys())
    coverage = Coverage(len(learner.keys() & engine.keys()), len(learner.keys() | engine.keys()))
    count = len(wrong) + len(missing) + len(unknown)
    if not count:
        low = sum(layer.grid not in _PLAIN for layer in learner.values())
        return passed(
            f"{low} of {len(learner)} layers are quantized on both sides, the same ones",
            coverage,
            measured=0,
            bound=0,
        )
    return failed(
        _message(wrong, missing, unknown, engine),
        coverage,
        subject=min([*wrong, *missing, *unknown]),
        measured=count,
        bound=0,
        evidence=[(weight, f"learner {a}, engine {b}") for weight, (a, b) in sorted(wrong.items())]
        + [(weight, "the engine has no such layer") for weight in missing]
        + [(weight, "the learner has no such layer") for weight in unknown],
    )


_PLAIN: Final = frozenset({"bf16", "fp16", "fp32"})


def _message(
    wrong: Mapping[str, tuple[str, str]],
    missing: Sequence[str],
    unknown: Sequence[str],
    engine: Mapping[str, EngineLayer],
) -> str:
    plain = sorted(weight for weight, (_, grid) in wrong.items() if grid in _PLAIN)
    low = sorted(wrong.keys() - set(plain))
    got = [
        *([f"the engine leaves unquantized: {listed(plain)}"] if plain else []),
        *([f"the engine quantizes: {listed(low)}"] if low else []),
        *([f"the engine has no: {listed(missing)}"] if missing else []),
        *([f"the learner has no: {listed(unknown)}"] if unknown else []),
    ]
    methods = sorted({engine[weight].method for weight in wrong})
    causes = [
        *(["an exclusion pattern matches more than was meant"] if plain else []),
        *(["lm_head, embedding or router is missing from the exclusions"] if low else []),
        *(["names of the two sides do not map to each other"] if missing or unknown else []),
    ]
    return explain(
        f"{len(wrong) + len(missing) + len(unknown)} layers differ between learner and engine",
        where=listed(sorted([*wrong, *missing, *unknown])),
        expected="the grids of the learner's forward: "
        + (listed([f"{w} {a}" for w, (a, _) in sorted(wrong.items())]) or "every layer present"),
        got="; ".join(got) + (f" (live methods: {', '.join(methods)})" if methods else ""),
        cause="; ".join(causes),
        todo="compare the engine's exclusion list with the learner's filter; ask the live modules, "
        "not the configuration, after every change of either",
    )
