"""Two tensor-parallel ranks of a live vLLM, each in a process of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncguard.errors import UsageError
from syncguard.faults import FAULTS, World
from syncguard.verdict import Reason, Status, Verdict
from tests import rank_faults as faults
from tests.live.conftest import make_pair
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("tp2")]

ATTENTION = "model.layers.0.self_attn"
K, OUT = (f"{ATTENTION}.{part}_proj.weight" for part in "ko")


@pytest.fixture(scope="session")
def _ranks(models: Path) -> Iterator[Pair]:
    pair = make_pair(models, "tiny-qwen3-moe", "mxfp8", ranks=2)
    yield pair
    pair.engine.close()


@pytest.fixture
def ranks(_ranks: Pair) -> Pair:
    """Two ranks that have just been synchronized and found healthy."""
    assert _ranks.judge() == {}
    return _ranks


def everywhere(pair: Pair, function: Callable[..., None], *arguments: Any) -> None:
    pair.engine.on_ranks(function, *arguments)


def armed(pair: Pair, fault: str, site: str) -> dict[str, Verdict]:
    world = World(lambda: pair.learner, lambda: pair.engine)
    with FAULTS[fault].armed(world, site):
        verdicts = pair.sync()
        assert world.fired
    return verdicts


def judged(pair: Pair) -> dict[str, Verdict]:
    return {verdict.check: verdict for verdict in pair.guard.judge()}


def test_every_condition_passes_on_both_ranks(ranks: Pair) -> None:
    verdicts = ranks.sync(poison=0xA5)
    assert {v.condition for v in verdicts.values()} >= {f"C{n}" for n in range(1, 8)}
    counted = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert {v.check: v.message for v in counted if v.status is not Status.PASS} == {}
    assert verdicts["weight-bytes"].coverage.layers_checked == 35
    assert {layer.rank for layer in ranks.engine.layers()} == {0, 1}
    ranks.learner.step(1e-6)
    assert ranks.judge(poison=0x5A) == {}
    assert ranks.judge(same_weights=True) == {}


def test_shards_are_told_apart(ranks: Pair) -> None:
    prints = ranks.engine.weight_prints()
    places = {
        name: [(shard.rank, shard.place.rows, shard.place.columns) for shard in prints[name].shards]
        for name in (K, OUT)
    }
    assert places[K] == [(0, (0, 32), (0, 128)), (1, (32, 64), (0, 128))]
    assert places[OUT] == [(0, (0, 128), (0, 64)), (1, (0, 128), (64, 128))]
    assert "model.norm.weight@rank1" in prints
    rows = ranks.engine.fetch_rows(OUT, [3, 90])
    expected = ranks.learner.grid_tensors(OUT)
    assert (rows["scales"] == expected["scales"][[3, 90]]).all()


def test_a_key_shard_swapped_between_ranks(ranks: Pair, tmp_path: Path) -> None:
    everywhere(ranks, faults.give_key, str(tmp_path))
    everywhere(ranks, faults.take_key, str(tmp_path), 1)
    verdicts = judged(ranks)
    everywhere(ranks, faults.take_key, str(tmp_path), 0)
    for check in ("weight-bytes", "exact-probe"):
        told = dict(verdicts[check].evidence)
        assert set(told) == {K}
        assert "on ranks 0, 1" in told[K]
        assert f"holds row 32 of the learner's {K}" in told[K]
    assert verdicts["re-derivation"].status is Status.PASS


def test_one_rank_that_is_not_updated(ranks: Pair) -> None:
    ranks.learner.perturb(1, scale=0.5)
    verdicts = armed(ranks, "rank-deaf", "rank1")
    ledger, told = dict(verdicts["ledger"].evidence), dict(verdicts["weight-bytes"].evidence)
    assert ledger[K] == "arrived, but no loader took it on rank 1"
    assert "on rank 1" in told[K]
    assert "on rank 1" in told[OUT]
    assert "model.norm.weight@rank1" in told
    assert "model.norm.weight" not in told
    assert verdicts["ranks"].subject == "rank 1"


def test_one_ranks_derived_state_is_stale(ranks: Pair) -> None:
    ranks.learner.perturb(2, scale=0.5)
    verdicts = armed(ranks, "stale-swizzled-scales", f"rank1:{faults.QKV}.weight_scale_swizzled")
    told = dict(verdicts["exact-probe"].evidence)
    assert told
    assert all(name.startswith(ATTENTION) and "on rank 1" in text for name, text in told.items())
    (path,) = dict(verdicts["re-derivation"].evidence)
    assert path == f"rank1:{faults.QKV}.weight_scale_swizzled"
    assert f"rank1:{faults.QKV}" in dict(verdicts["random-probe"].evidence)
    assert verdicts["weight-bytes"].status is Status.PASS


def test_a_rank_that_fails_is_named_and_nobody_answers_for_it(ranks: Pair) -> None:
    everywhere(ranks, faults.fail_observing, 1)
    verdict = judged(ranks)["layer-set"]
    everywhere(ranks, faults.observe_again)
    assert verdict.status is Status.NOT_RUN
    assert "layers: rank 1: RuntimeError: out of memory" in verdict.message
    assert ranks.judge() == {}


def test_a_path_that_cannot_reach_other_processes_is_refused(models: Path) -> None:
    with pytest.raises(UsageError, match="cannot cross to other processes"):
        make_pair(models, "tiny-qwen3", "mxfp8", path="reload", ranks=2)
