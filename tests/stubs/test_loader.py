"""A layer is loaded shard by shard, counted by elements, and folded when the count is reached."""

from collections.abc import Sequence

import pytest
import torch

from syncguard.stubs import NotServing, StubEngine, StubLearner, Topology
from tests.stubs.helpers import counting, differing_prints, pair, policy_gap, skipping, sync

_ATTENTION = "model.layers.0.self_attn"
_Q, _K, _V = (f"{_ATTENTION}.{part}_proj.weight" for part in "qkv")
_TOPOLOGY = Topology(layers=1, heads=2, kv_heads=2)


def _send(engine: StubEngine, items: Sequence[tuple[str, torch.Tensor]]) -> None:
    engine.begin(1, "1")
    for item in items:
        engine.send([item])


def _without(learner: StubLearner, *names: str) -> list[tuple[str, torch.Tensor]]:
    return [item for item in learner.weights() if item[0] not in names]


def test_ledger_tells_what_went_where() -> None:
    learner, engine = pair(Topology(layers=1, experts=2, ranks=2, kv_heads=4))
    record = sync(learner, engine, per_bucket=1)
    names = [name for name, _ in learner.weights()]
    assert [name for bucket in record.buckets for name in bucket] == names
    assert [row.bucket for row in record.loaded] == sorted(row.bucket for row in record.loaded)
    rows = {(row.weight, row.rank): row for row in record.loaded}
    assert len(rows) == len(record.loaded)
    gate = "model.layers.0.mlp.experts.1.gate_proj.weight"
    assert [rank for name, rank in rows if name == gate] == [1]
    row = rows[gate, 1]
    assert (row.parameter, row.shard, row.expert, row.numel) == (
        "model.layers.0.mlp.experts.w13_weight[0]",
        "w1",
        1,
        64 * 64,
    )
    assert {rank for name, rank in rows if name == _Q} == {0, 1}
    assert rows[_Q, 0].shard == "q"


def test_missing_shard_is_leftover_memory() -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    _send(engine, _without(learner, _V))
    record = engine.finish()
    assert record.unfolded == [f"{_ATTENTION}.qkv_proj"]
    assert differing_prints(learner, engine) == {_V}
    gap = policy_gap(learner, engine)
    assert 0.1 < gap < float("inf")


def test_missing_layer_keeps_what_it_had() -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    learner.perturb(0.1)
    name = f"{_ATTENTION}.o_proj.weight"
    _send(engine, _without(learner, name))
    assert engine.finish().unfolded == []
    assert differing_prints(learner, engine) == {name}


def test_shard_sent_twice_hides_one_that_never_came() -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    weights = dict(learner.weights())
    _send(engine, [*_without(learner, _V), (_Q, weights[_Q])])
    assert engine.finish().unfolded == []  # the count of elements is right
    assert differing_prints(learner, engine) == {_V}


def test_fold_before_the_last_bucket() -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    engine.begin(2, "2")
    for item in learner.weights():
        engine.send([item])
        engine.flush()
    engine.finish()
    late = {_K, _V, "model.layers.0.mlp.up_proj.weight"}
    assert differing_prints(learner, engine) == late  # only the first of each layer was in time


def test_what_comes_after_the_layer_is_complete_is_dropped() -> None:
    learner, engine = pair(_TOPOLOGY)
    weights = list(learner.weights())
    _send(engine, [*weights, (_Q, torch.zeros_like(dict(weights)[_Q]))])
    engine.finish()
    assert not differing_prints(learner, engine)


def test_references_are_held_until_the_layer_is_complete() -> None:
    learner, engine = pair(_TOPOLOGY)
    buffer = torch.empty(0)
    engine.begin(1, "1")
    for name, tensor in learner.weights():
        if name in (_Q, _K, _V):  # one staging buffer for all of them, not cloned
            buffer = buffer if buffer.shape == tensor.shape else torch.empty_like(tensor)
            buffer.copy_(tensor)
            engine.send([(name, buffer)])
        else:
            engine.send([(name, tensor)])
    engine.finish()
    assert differing_prints(learner, engine) == {_Q, _K}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("model.layers.9.self_attn.q_proj.weight", "no weight 'model.layers.9"),
        ("model.layers.0.mlp.experts.7.up_proj.weight", "no weight 'model.layers.0.mlp.experts.7"),
        (_Q, "q_proj.weight came as [3, 3], of which"),
    ],
)
def test_what_cannot_be_loaded(name: str, text: str) -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    engine.begin(2, "2")
    whole = [item for item in learner.weights() if item[0] != name]
    with pytest.raises(ValueError, match="weight") as caught:
        engine.send([(name, torch.zeros(3, 3)), *whole])
    assert text in str(caught.value)
    record = engine.abandon("it failed")
    assert (record.error, record.served_version) == ("it failed", "1")
    assert record.buckets
    with pytest.raises(NotServing, match="no whole sync since: it failed"):
        engine.generate([[1]], 1, 0)
    assert not differing_prints(learner, engine)  # what was staged is undone
    sync(learner, engine, 3)
    assert policy_gap(learner, engine) < 0.05


def test_parameter_that_lost_its_loader() -> None:
    learner, engine = pair(_TOPOLOGY)
    layer = engine.ranks[0].layer(f"{_ATTENTION}.qkv_proj")
    layer.put("weight", torch.nn.Parameter(layer.weight.data, requires_grad=False))
    with pytest.raises(ValueError, match="without a loader of its own"):
        sync(learner, engine)


def test_session_has_one_life() -> None:
    _, engine = pair(_TOPOLOGY)
    for call in (engine.finish, lambda: engine.send([]), lambda: engine.abandon("")):
        with pytest.raises(RuntimeError, match="no sync is open"):
            call()
    engine.begin(1, "1")
    with pytest.raises(RuntimeError, match="sync 1 is still open"):
        engine.begin(2, "2")
    with pytest.raises(NotServing, match="sync 1 is open"):
        engine.generate([[1]], 1, 0)


def test_head_on_the_wire_of_a_tied_model_is_ignored() -> None:
    learner, engine = pair(Topology(layers=1, tied=True))
    weights = list(learner.weights())
    _send(engine, [*weights, ("lm_head.weight", weights[0][1] * 2)])
    engine.finish()
    assert not differing_prints(learner, engine)


@pytest.mark.parametrize("seam", ["loader", "stage", "process", "quantizer"])
def test_seams_of_loading_are_passed(seam: str) -> None:
    learner, engine = pair(_TOPOLOGY)
    site = next(site for site in engine.seams()[seam] if site.startswith(f"{_ATTENTION}.qkv_proj"))
    counted: list[str] = []
    with engine.seams()[seam][site].wrap(counting(lambda: counted.append(site))):
        sync(learner, engine)
    assert counted == [site]


def test_unquantized_bytes_reach_the_kernel_if_processing_is_skipped() -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    with engine.seams()["process"][f"{_ATTENTION}.o_proj"].wrap(skipping):
        sync(learner, engine, 2)
    assert differing_prints(learner, engine) == {f"{_ATTENTION}.o_proj.weight"}
    with pytest.raises(ValueError, match="elements must be"):
        policy_gap(learner, engine)
