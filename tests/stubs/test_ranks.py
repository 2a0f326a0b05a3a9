"""Ranks hold rectangles of weights; observations of them merge to the learner's weights."""

import pytest

from syncguard.stubs import Topology
from syncguard.stubs.shards import cut
from tests.stubs.helpers import differing_prints, differing_probes, pair, policy_gap, sync

_EXPERT = "model.layers.0.mlp.experts.{}.up_proj.weight"


@pytest.mark.parametrize("total", [32, 96, 37])
@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_cuts_cover_once(total: int, parts: int) -> None:
    unit = 32 if total % 32 == 0 else 1
    cuts = [cut(total, parts, index, unit) for index in range(parts)]
    assert [row for piece in cuts for row in range(total)[piece]] == list(range(total))
    assert all(piece.start % unit == 0 for piece in cuts)


@pytest.mark.parametrize(
    ("weight", "rows"),
    [
        ("model.layers.0.self_attn.q_proj.weight", slice(64, 128)),  # cut by rows
        ("model.layers.0.self_attn.o_proj.weight", slice(0, 64)),  # by columns
        ("model.embed_tokens.weight", slice(48, 96)),
    ],
)
def test_fault_on_one_rank_shows_in_its_part(weight: str, rows: slice) -> None:
    learner, engine = pair(Topology(layers=1, ranks=2))
    sync(learner, engine)
    learner.perturb(0.1)
    receiver = engine.seams()["route"]["rank1"]
    with receiver.wrap(lambda route: lambda name: [] if name == weight else route(name)):
        sync(learner, engine, 2)
    mine, theirs = learner.prints()[weight], engine.weight_prints()[weight]
    component = next(iter(mine.rows))
    wrong = (mine.rows[component] != theirs.rows[component]).nonzero()[0]  # type: ignore[union-attr]
    assert wrong.tolist() == list(range(mine.shape[0]))[rows]
    assert differing_prints(learner, engine) == differing_probes(learner, engine) == {weight}
    assert policy_gap(learner, engine) > 0.05


def test_copies_are_reported_one_by_one() -> None:
    learner, engine = pair(Topology(layers=1, ranks=2, kv_heads=1))
    sync(learner, engine)
    prints = engine.weight_prints()
    copied = {key for key in prints if key.endswith("@rank1")}
    assert "model.norm.weight@rank1" in copied
    assert "model.layers.0.self_attn.k_proj.weight@rank1" in copied
    assert "model.layers.0.self_attn.q_proj.weight@rank1" not in prints
    assert prints["model.norm.weight@rank1"].weight == "model.norm.weight"
    with engine.seams()["receive"]["rank1"].wrap(lambda original: lambda *args: []):
        learner.perturb(0.1)
        sync(learner, engine, 2)
    wrong = differing_prints(learner, engine)
    assert "model.norm.weight" not in wrong
    assert copied <= wrong


def test_replicas_are_reported_one_by_one() -> None:
    learner, engine = pair(Topology(layers=1, replicas=2))
    sync(learner, engine)
    learner.perturb(0.1)
    with engine.seams()["receive"]["rank1"].wrap(lambda original: lambda *args: []):
        sync(learner, engine, 2)
    assert differing_prints(learner, engine) == {f"{name}@rank1" for name in learner.prints()}
    assert {layer.rank for layer in engine.layers()} == {0, 1}
    one = policy_gap(learner, engine, prompts=[[1, 2, 3]])
    both = policy_gap(learner, engine, prompts=[[1, 2, 3], [3, 2, 1]])
    assert one < 0.05 < both  # replicas take turns


def test_weight_that_no_rank_holds_is_unreadable() -> None:
    learner, engine = pair(Topology(layers=1, ranks=2, experts=2))
    sync(learner, engine)
    for rank in engine.ranks:
        rank.layer("model.layers.0.mlp.experts").placement.fill_(0)
    prints = engine.weight_prints()
    assert _EXPERT.format(1) not in prints
    assert f"{_EXPERT.format(0)}@rank1[0]" in prints


def test_shared_expert_is_cut_not_placed() -> None:
    learner, engine = pair(Topology(layers=1, ranks=2, experts=2, shared_expert=True))
    sync(learner, engine)

    def placed(route):  # type: ignore[no-untyped-def]
        return lambda name: [] if ".shared_experts." in name else route(name)

    learner.perturb(0.1)
    with engine.seams()["route"]["rank1"].wrap(placed):
        sync(learner, engine, 2)
    assert len(differing_prints(learner, engine)) == 3


def test_rebalanced_experts_serve_the_same() -> None:
    topology = Topology(layers=2, ranks=2, experts=4, redundant_experts=2, expert_kernel="shuffled")
    learner, engine = pair(topology)
    sync(learner, engine)
    before = engine.ranks[0].layer("model.layers.0.mlp.experts").placement.tolist()
    engine.rebalance(seed=1)
    after = engine.ranks[0].layer("model.layers.0.mlp.experts").placement.tolist()
    assert before != after
    assert set(after) == set(range(4))
    assert not differing_prints(learner, engine)
    assert policy_gap(learner, engine) < 0.05
    learner.perturb(0.1)
    sync(learner, engine, 2)
    assert not differing_prints(learner, engine)
    assert policy_gap(learner, engine) < 0.05


def test_sync_by_the_first_placement() -> None:
    learner, engine = pair(Topology(layers=1, experts=4, redundant_experts=2))
    sync(learner, engine)
    engine.rebalance(seed=1)
    first = [[slot for slot in range(6) if slot % 4 == expert] for expert in range(4)]
    with engine.seams()["placement"]["model.layers.0.mlp.experts"].wrap(
        lambda original: lambda expert: first[expert]
    ):
        sync(learner, engine, 2)
    assert differing_prints(learner, engine) == differing_probes(learner, engine)
    assert differing_prints(learner, engine)


def test_random_probe_of_ranks_is_that_of_the_whole() -> None:
    learner, one = pair(Topology(layers=1, experts=2, bias=True))
    _, two = pair(Topology(layers=1, experts=2, bias=True, ranks=2))
    for engine in (one, two):
        sync(learner, engine)
    whole = {(p.module, p.parts): p.output for p in one.probe_random(5, seed=1)}
    cut_up = {(p.module, p.parts): p.output for p in two.probe_random(5, seed=1)}
    assert whole.keys() == cut_up.keys()
    for key, output in whole.items():
        assert abs(output - cut_up[key]).max() <= 2**-6 * abs(output).max()
