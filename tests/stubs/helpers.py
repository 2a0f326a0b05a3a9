"""Run one sync, and hold everything that the two sides say of it against each other."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from syncguard.observations import SyncRecord, Unreadable, WeightPrint
from syncguard.stubs import StubEngine, StubLearner, Topology, make_stub_engine, make_stub_learner

PROMPTS = [[1, 2, 3, 4, 5], [5, 4, 3], [7, 1, 7, 1, 7, 1], [2]]

TOPOLOGIES = {
    "dense": Topology(),
    "tied": Topology(tied=True, bias=True, sinks=True, kv_scales=True, draft="synced"),
    "latent": Topology(attention="mla", kv_heads=4, draft="frozen", rope="global"),
    "serialized": Topology(wire="mxfp8", linear_kernel="two_level", head_kernel="freed"),
    "unquantized": Topology(quantization="none", experts=2, expert_kernel="interleaved", layers=1),
    "experts": Topology(experts=4, shared_expert=True, dense_layers=1, hidden=96, vocab=51),
    "ranks": Topology(
        ranks=4, heads=4, kv_heads=2, layers=1, vocab=37, bias=True, experts=5, redundant_experts=2
    ),
    "cut experts": Topology(
        ranks=3, heads=6, kv_heads=3, layers=1, experts=3, expert_parallel=False,
        expert_intermediate=96, expert_kernel="shuffled",
    ),
    "replicas": Topology(replicas=2, layers=1, linear_kernel="cached", graph=False),
}  # fmt: skip


def pair(topology: Topology, seed: int = 0) -> tuple[StubLearner, StubEngine]:
    return make_stub_learner(topology, seed=seed), make_stub_engine(topology, seed=seed)


def sync(
    learner: StubLearner, engine: StubEngine, number: int = 1, per_bucket: int = 4
) -> SyncRecord:
    weights = list(learner.weights())
    engine.begin(number, str(number))
    for first in range(0, len(weights), per_bucket):
        engine.send(weights[first : first + per_bucket])
    return engine.finish()


def differing_prints(learner: StubLearner, engine: StubEngine) -> set[str]:
    """Keys of the engine's weights whose bytes are not the learner's, or cannot be read."""
    return _differing(learner.prints(), engine.weight_prints())


def differing_probes(learner: StubLearner, engine: StubEngine) -> set[str]:
    """Keys of the engine's weights that its serving path does not compute with."""
    wanted = learner.value_prints()
    found = engine.probe_exact()
    assert {key.partition("@")[0] for key in found} == set(wanted)
    return {
        key
        for key, held in found.items()
        if isinstance(held, Unreadable)
        or not np.array_equal(held.rows["values"], wanted[held.weight])
    }


def policy_gap(
    learner: StubLearner, engine: StubEngine, tokens: int = 6, prompts: Any = None
) -> float:
    """Largest difference of log-probabilities on what the engine samples."""
    answers = engine.generate(prompts or PROMPTS, tokens, seed=3)
    wanted = learner.logprobs([sequence for sequence, _ in answers])
    gaps = [np.abs(scores - mine) for (_, scores), mine in zip(answers, wanted, strict=True)]
    return float(np.nan_to_num(np.concatenate(gaps), nan=np.inf).max())


def rederived_wrong(engine: StubEngine) -> list[str]:
    return [row.path for row in engine.rederive() if row.differing]


def places(engine: StubEngine) -> dict[str, tuple[object, ...]]:
    return {
        row.path: (row.storage, row.offset, row.shape, row.stride, row.dtype)
        for row in engine.storage()
    }


def skipping(original: Callable[..., Any]) -> Callable[..., None]:
    """A wrapper after which nothing happens."""
    del original
    return lambda *args, **kwargs: None


def counting(count: Callable[[], object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a wrapper that calls ``count`` before each call."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            count()
            return original(*args, **kwargs)

        return counted

    return make


def _differing(
    wanted: Mapping[str, WeightPrint], found: Mapping[str, WeightPrint | Unreadable]
) -> set[str]:
    assert {key.partition("@")[0] for key in found} == set(wanted)
    wrong = set()
    for key, held in found.items():
        mine = wanted[held.weight]
        same = isinstance(held, WeightPrint) and (
            held.grid == mine.grid
            and held.shape == mine.shape
            and held.nbytes == mine.nbytes
            and all(np.array_equal(held.rows[name], mine.rows[name]) for name in mine.rows)
        )
        if not same:
            wrong.add(key)
    return wrong
