"""Two tensor-parallel ranks of a live SGLang, each in a scheduler process of its own."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncguard.engines.hosting import HostedEngine
from syncguard.faults import FAULTS, World
from syncguard.guard import Guard
from syncguard.models import resolve_model
from syncguard.reporting import Broadcast
from syncguard.sides import make_learner
from syncguard.verdict import Reason, Status, Verdict
from tests import rank_faults as faults
from tests.pairs import BUCKET_BYTES
from tests.processes import left_behind

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("sglang-tp2")]

ATTENTION = "model.layers.0.self_attn"
K, OUT = (f"{ATTENTION}.{part}_proj.weight" for part in "ko")
WEIGHTS = 25


class Ranks:
    """A hosted engine of two ranks, its learner and its guard."""

    def __init__(self, models: Path) -> None:
        checkpoint = resolve_model("tiny-qwen3-wide", models)
        factory = "tests.live_sglang.ranked:start"
        engine: Any = HostedEngine(factory, (checkpoint.path, "mxfp8"))
        self.engine = engine
        self.learner: Any = make_learner(checkpoint, "mxfp8", 0, engine.wire)
        vocabulary = checkpoint.config["vocab_size"]
        self.guard = Guard(self.learner, engine, Broadcast([]), vocabulary=vocabulary)

    def sync(self, **options: Any) -> dict[str, Verdict]:
        _, verdicts = self.guard.sync(bucket_bytes=BUCKET_BYTES, **options)
        return {verdict.check: verdict for verdict in verdicts}

    def odd(self, **options: Any) -> dict[str, str]:
        """Sync; the verdicts that are no pass."""
        found = self.sync(**options)
        return {n: v.message for n, v in found.items() if v.counts and v.status is not Status.PASS}

    def judged(self) -> dict[str, Verdict]:
        return {verdict.check: verdict for verdict in self.guard.judge()}

    def everywhere(self, function: Callable[..., None], *arguments: Any) -> None:
        self.engine.on_ranks(function, *arguments)


@pytest.fixture(scope="module")
def _ranks(models: Path) -> Iterator[Ranks]:
    made = Ranks(models)
    yield made
    made.engine.close()
    assert left_behind(made.engine._process.pid) == {}


@pytest.fixture
def ranks(_ranks: Ranks) -> Ranks:
    """Two ranks that have just been synchronized and found healthy."""
    assert _ranks.odd() == {}
    return _ranks


def test_every_condition_passes_on_both_ranks(ranks: Ranks) -> None:
    verdicts = ranks.sync(poison=0xA5)
    assert {v.condition for v in verdicts.values()} >= {f"C{n}" for n in range(1, 8)}
    counted = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert {v.check: v.message for v in counted if v.status is not Status.PASS} == {}
    assert verdicts["weight-bytes"].coverage.layers_checked == WEIGHTS
    assert verdicts["exact-probe"].coverage.layers_checked == 16
    table = ranks.engine.layers()
    assert {layer.rank for layer in table} == {0, 1}
    assert {x.kernel for x in table if x.module.endswith("qkv_proj")} == {
        "flashinfer_cutlass (stand-in)"
    }
    ranks.learner.step(1e-6)
    assert ranks.odd(poison=0x5A) == {}
    assert ranks.odd(same_weights=True) == {}


def test_shards_are_told_apart(ranks: Ranks) -> None:
    prints = ranks.engine.weight_prints()
    places = {
        name: [(shard.rank, shard.place.rows, shard.place.columns) for shard in prints[name].shards]
        for name in (K, OUT)
    }
    assert places[K] == [(0, (0, 64), (0, 256)), (1, (64, 128), (0, 256))]
    assert places[OUT] == [(0, (0, 256), (0, 128)), (1, (0, 256), (128, 256))]
    assert "model.norm.weight@rank1" in prints
    rows = ranks.engine.fetch_rows(OUT, [3, 90])
    expected = ranks.learner.grid_tensors(OUT)
    assert (rows["scales"] == expected["scales"][[3, 90]]).all()


def test_a_key_shard_swapped_between_ranks(ranks: Ranks, tmp_path: Path) -> None:
    ranks.everywhere(faults.give_key, str(tmp_path))
    ranks.everywhere(faults.take_key, str(tmp_path), 1)
    verdicts = ranks.judged()
    ranks.everywhere(faults.take_key, str(tmp_path), 0)
    for check in ("weight-bytes", "exact-probe"):
        told = dict(verdicts[check].evidence)
        assert set(told) == {K}
        assert "on ranks 0, 1" in told[K]
        assert f"holds row 64 of the learner's {K}" in told[K]
    assert verdicts["re-derivation"].status is Status.PASS


def test_one_rank_that_is_not_updated(ranks: Ranks) -> None:
    ranks.learner.perturb(1, scale=0.5)
    ranks.everywhere(faults.go_deaf, 1)
    verdicts = ranks.sync()
    ranks.everywhere(faults.hear_again)
    ledger, told = dict(verdicts["ledger"].evidence), dict(verdicts["weight-bytes"].evidence)
    assert verdicts["session"].status is Status.PASS  # SGLang calls it a success
    assert ledger[K] == "arrived, but no loader took it on rank 1"
    assert "on rank 1" in told[K]
    assert "on rank 1" in told[OUT]
    assert "model.norm.weight@rank1" in told
    assert "model.norm.weight" not in told
    assert verdicts["ranks"].subject == "rank 1"


def test_one_ranks_derived_state_is_stale(ranks: Ranks) -> None:
    ranks.learner.perturb(2, scale=0.5)
    world = World(lambda: ranks.learner, lambda: ranks.engine)
    site = f"rank1:{faults.QKV}.weight_scale_inv_swizzled"
    with FAULTS["stale-swizzled-scales"].armed(world, site):
        verdicts = ranks.sync()
        assert world.fired
    told = dict(verdicts["exact-probe"].evidence)
    assert told
    assert all(name.startswith(ATTENTION) and "on rank 1" in text for name, text in told.items())
    assert set(dict(verdicts["re-derivation"].evidence)) == {site}
    assert verdicts["weight-bytes"].status is Status.PASS


def test_a_rank_that_fails_is_named_and_nobody_answers_for_it(ranks: Ranks) -> None:
    ranks.everywhere(faults.fail_observing, 1)
    verdict = ranks.judged()["layer-set"]
    ranks.everywhere(faults.observe_again)
    assert verdict.status is Status.NOT_RUN
    assert "layers: rank 1: RuntimeError: out of memory" in verdict.message
    assert ranks.odd() == {}


def test_a_rank_that_answers_late_is_named_and_its_answer_dropped(ranks: Ranks) -> None:
    ranks.everywhere(faults.fail_observing, 1, 3.0)
    ranks.engine.wait_for_ranks(1.0)
    verdict = ranks.judged()["layer-set"]
    ranks.engine.wait_for_ranks(120.0)
    ranks.everywhere(faults.observe_again)
    assert verdict.status is Status.NOT_RUN
    assert "layers: no answer from rank 1" in verdict.message
    time.sleep(1)
    assert ranks.odd() == {}
