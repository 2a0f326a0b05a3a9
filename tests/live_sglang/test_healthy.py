"""Healthy syncs of a live SGLang engine pass, whichever way they take."""

from typing import Any

import pytest

from syncguard.observations import Unreadable
from syncguard.verdict import Reason, Status
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang")]

QKV = "model.layers.0.self_attn.qkv_proj"


def test_every_condition_passes_with_full_coverage(mxfp8: Pair) -> None:
    verdicts = mxfp8.sync(poison=0xA5)
    assert {v.condition for v in verdicts.values()} >= {f"C{n}" for n in range(1, 8)}
    applicable = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert {v.check: v.message for v in applicable if v.status is not Status.PASS} == {}
    assert all(v.coverage.complete for v in applicable)
    weights = len(mxfp8.learner.layers())
    assert verdicts["weight-bytes"].coverage.layers_checked == weights
    assert verdicts["exact-probe"].coverage.layers_checked == 16
    assert "39 weights arrived and were written exactly once" in verdicts["ledger"].message


def test_equal_weights_change_nothing(mxfp8: Pair) -> None:
    verdict = mxfp8.sync(same_weights=True)["equal-sync"]
    assert verdict.status is Status.PASS
    assert verdict.coverage.layers_checked > 40


@pytest.mark.parametrize("path", ["flattened", "loader", "disk"])
def test_every_path_serves_an_optimizer_step(
    path: str, mxfp8: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mxfp8.engine, "_path", path)
    report = mxfp8.learner.step(1e-6)
    assert report.weights_changed > 0
    assert mxfp8.judge(poison=0x5A) == {}
    assert mxfp8.engine.version() == mxfp8.engine._record.version


def test_layer_table_asks_live_methods_and_kernels(mxfp8: Pair) -> None:
    table = {layer.module: layer for layer in mxfp8.engine.layers()}
    assert table[QKV].method == "Fp8LinearMethod"
    assert table[QKV].kernel == "flashinfer_cutlass (stand-in)"
    assert [part.split(".")[-2] for part in table[QKV].parts] == ["q_proj", "k_proj", "v_proj"]
    assert (table[QKV].grid, table[QKV].activations) == ("mxfp8", "mxfp8")
    assert (table["lm_head"].grid, table["lm_head"].parts) == ("bf16", ("lm_head.weight",))


def test_the_environment_says_that_kernels_are_stand_ins(mxfp8: Pair, tied: Pair) -> None:
    assert "life cycle" in mxfp8.engine.environment()["stand-ins"]
    assert "stand-ins" not in tied.engine.environment()


def test_poison_reaches_every_byte(mxfp8: Pair) -> None:
    counts = mxfp8.engine.poison(0x5A)
    total = sum(held.nbytes for held in mxfp8.learner.prints().values())
    assert sum(counts.values()) == total
    assert not any(isinstance(p, Unreadable) for p in mxfp8.engine.weight_prints().values())


def test_samples_follow_the_seed_and_are_scored(mxfp8: Pair) -> None:
    prompts = [[5, 6, 7], [8, 9]]
    first, again, other = (mxfp8.engine.generate(prompts, 4, seed) for seed in (0, 0, 1))
    assert [ids for ids, _ in first] == [ids for ids, _ in again]
    assert [ids for ids, _ in first] != [ids for ids, _ in other]
    assert [len(scores) for _, scores in first] == [6, 5]
    assert all((scores < 0).all() for _, scores in first)


def test_a_tied_head_is_served_after_a_sync(tied: Pair) -> None:
    """vLLM on a CPU keeps a packed copy of a tied head; SGLang does not."""
    tied.learner.perturb(3, scale=0.5)
    verdicts = tied.sync(poison=0xA5)
    assert verdicts["exact-probe"].status is Status.PASS
    assert verdicts["exact-probe"].coverage.layers_checked == 16
    assert {v.check for v in verdicts.values() if v.counts and v.status is not Status.PASS} == set()


def test_a_synchronized_engine_equals_one_that_loaded_the_weights(models: Any, tied: Pair) -> None:
    from tests.pairs import make_pair

    def start_cold() -> Any:
        return make_pair("sglang", "tiny-qwen3-tied", models, "none", load_format="auto").engine

    fresh = make_pair("sglang", "tiny-qwen3-tied", models, "none")
    verdict = fresh.sync(start_cold=start_cold)["cold-warm"]
    assert verdict.status is Status.PASS, verdict.message
    assert verdict.coverage.layers_checked > 20
