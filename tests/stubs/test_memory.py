"""Pausing releases memory; what a sync does not bring survives it."""

import pytest
import torch

from syncguard.stubs import NotServing, StubEngine, StubLearner, Topology, layouts
from tests.stubs.helpers import (
    TOPOLOGIES,
    differing_prints,
    differing_probes,
    pair,
    places,
    policy_gap,
    sync,
)

_RICH = Topology(
    layers=1, experts=4, redundant_experts=1, sinks=True, kv_scales=True, draft="frozen"
)


def _ready(topology: Topology) -> tuple[StubLearner, StubEngine]:
    learner, engine = pair(topology)
    sync(learner, engine)
    engine.probe_exact()
    return learner, engine


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_first_level_keeps_everything(name: str) -> None:
    learner, engine = _ready(TOPOLOGIES[name])
    before = engine.state(), places(engine)
    engine.sleep(1)
    released = engine.state()
    assert released.keys() == before[0].keys()
    assert not released.items() & before[0].items()
    with pytest.raises(NotServing, match="paused"):
        engine.generate([[1]], 1, seed=0)
    engine.wake()
    assert (engine.state(), places(engine)) == before
    assert policy_gap(learner, engine) < 0.05


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_second_level_leaves_weights_to_the_next_sync(name: str) -> None:
    learner, engine = _ready(TOPOLOGIES[name])
    before = engine.state()
    engine.sleep(2)
    engine.wake()
    assert differing_prints(learner, engine)
    with pytest.raises(NotServing, match="released"):
        engine.generate([[1]], 1, seed=0)
    sync(learner, engine, 2)
    assert engine.state() == before
    assert policy_gap(learner, engine) < 0.05


@pytest.mark.parametrize(
    "path",
    [
        "speculator.fc.weight",
        "speculator.fc.weight_scale_swizzled",
        "model.layers.0.mlp.experts.constants.limit",
        "model.layers.0.self_attn.attn.cos_sin_cache",
        "model.layers.0.mlp.experts.quant_method.kernel.workspace",
    ],
)
def test_what_is_not_kept_aside_is_lost(path: str) -> None:
    learner, engine = _ready(_RICH)
    before = engine.state()
    with engine.seams()["backup"][path].wrap(lambda original: lambda *args: False):
        engine.sleep(2)
    engine.wake()
    sync(learner, engine, 2)
    after = engine.state()
    assert {found for found in after if after[found] != before[found]} == {path}


def test_cache_scales_are_lost_with_the_first_level_only() -> None:
    learner, engine = _ready(_RICH)
    name = "model.layers.0.self_attn.attn.k_scale"

    def forget(original):  # type: ignore[no-untyped-def]
        return lambda path, tensor: path != name and original(path, tensor)

    with engine.seams()["backup"]["engine"].wrap(forget):
        engine.sleep(1)
    engine.wake()
    assert differing_prints(learner, engine) == {"model.layers.0.self_attn.k_scale"}


def test_row_orders_lost_with_the_memory_permute_new_weights() -> None:
    topology = Topology(layers=1, experts=2, expert_kernel="shuffled", expert_intermediate=32)
    learner, engine = _ready(topology)
    key = "shuffle-64"
    try:
        layouts._ORDERS[key].copy_(torch.arange(64).flip(0))
        sync(learner, engine, 2)
        wrong = differing_probes(learner, engine)
        assert wrong == differing_prints(learner, engine)
        assert any("experts" in name for name in wrong)
        paths = engine.storage()
        assert any(row.path.endswith(f"_ORDERS[{key}]") for row in paths)
    finally:
        layouts.forget_orders()
    sync(learner, engine, 3)
    assert not differing_probes(learner, engine)


def test_restart_begins_anew() -> None:
    learner, engine = pair(Topology(layers=1))
    before = engine.state()
    sync(learner, engine)
    engine.restart()
    assert engine.state() == before
    assert engine.version() == ""
