"""A live MXFP8 engine: healthy syncs pass, and each injected fault is found and named."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from syncguard.observations import Unreadable
from syncguard.verdict import Reason, Status
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("mxfp8")]

QKV = "model.layers.0.self_attn.qkv_proj"
K = "model.layers.0.self_attn.k_proj.weight"


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an instance attribute that hides a method, and take it away again."""
    setattr(owner, name, value)
    try:
        yield
    finally:
        delattr(owner, name)


def test_every_condition_passes_with_full_coverage(mxfp8: Pair) -> None:
    verdicts = mxfp8.sync(poison=0xA5)
    assert {v.condition for v in verdicts.values()} >= {f"C{n}" for n in range(1, 8)}
    assert {v.check: v.message for v in verdicts.values() if v.status is Status.FAIL} == {}
    applicable = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert all(v.status is Status.PASS and v.coverage.complete for v in applicable)
    weights = len(mxfp8.learner.layers())
    assert verdicts["weight-bytes"].coverage.layers_checked == weights
    assert verdicts["exact-probe"].coverage.layers_checked == 16
    assert verdicts["ledger"].coverage.layers_checked == weights


def test_equal_weights_change_nothing(mxfp8: Pair) -> None:
    verdict = mxfp8.sync(same_weights=True)["equal-sync"]
    assert verdict.status is Status.PASS
    assert verdict.coverage.layers_checked > 40


def test_weights_of_an_optimizer_step_are_served(mxfp8: Pair) -> None:
    report = mxfp8.learner.step(1e-6)
    assert report.weights_changed > 0
    assert mxfp8.judge(poison=0x5A) == {}


def test_layer_table_asks_live_methods_and_kernels(mxfp8: Pair) -> None:
    table = {layer.module: layer for layer in mxfp8.engine.layers()}
    assert table[QKV].kernel == "CpuMxfp8LinearKernel"
    assert table[QKV].parts[1] == K
    assert (table[QKV].grid, table[QKV].activations) == ("mxfp8", "mxfp8")
    assert (table["lm_head"].grid, table["lm_head"].parts) == ("bf16", ("lm_head.weight",))


@pytest.mark.parametrize("bit", [0, 3, 6, 7])
def test_one_flipped_element_bit_is_found_by_row(mxfp8: Pair, bit: int) -> None:
    weight = mxfp8.model.get_submodule(QKV).weight.data.view(torch.uint8)
    row = mxfp8.learner.layers()[1].shape[0]
    q_rows = 128
    weight[q_rows + 5, 77] ^= 1 << bit
    prints, probe = mxfp8.engine.weight_prints(), mxfp8.engine.probe_exact()
    weight[q_rows + 5, 77] ^= 1 << bit
    expected, values = mxfp8.learner.prints(), mxfp8.learner.value_prints()
    assert row
    for name, held in prints.items():
        differing = (
            held.rows["elements"] != expected[name].rows["elements"]
            if ("elements" in held.rows)
            else held.rows["values"] != expected[name].rows["values"]
        )
        assert differing.nonzero()[0].tolist() == ([5] if name == K else [])
    for name, held in probe.items():
        differing = held.rows["values"] != values[name]
        assert differing.nonzero()[0].tolist() == ([5] if name == K else [])


def test_stale_derived_scales_fail_c3_only(mxfp8: Pair) -> None:
    """F3: fresh elements meet old scales."""
    kernel = mxfp8.model.get_submodule(QKV).quant_method.kernel
    mxfp8.learner.perturb(1, scale=0.5)
    with replaced(kernel, "process_weights_after_loading", lambda layer: None):
        found = mxfp8.judge()
    assert found["exact-probe"].startswith("fail model.layers.0.self_attn.")
    assert found["re-derivation"].startswith("fail model.layers.0.self_attn.")
    assert not {"weight-bytes", "weight-values", "layer-set", "ledger"} & found.keys()


def test_one_derived_scale_byte_is_found(mxfp8: Pair) -> None:
    derived = mxfp8.model.get_submodule(QKV).weight_scale_swizzled
    derived[0] += 1
    probe = mxfp8.engine.probe_exact()
    rederived = {r.path: r.differing for r in mxfp8.engine.rederive() if r.differing}
    derived[0] -= 1
    values = mxfp8.learner.value_prints()
    wrong = {name for name, held in probe.items() if (held.rows["values"] != values[name]).any()}
    assert wrong == {"model.layers.0.self_attn.q_proj.weight"}
    assert rederived == {f"{QKV}.weight_scale_swizzled": 1}


def test_rebound_derived_storage_fails_c4(mxfp8: Pair) -> None:
    """F6: post-processing binds a new tensor; a captured graph keeps the old one."""
    layer = mxfp8.model.get_submodule(QKV)
    kernel = layer.quant_method.kernel
    original = type(kernel).process_weights_after_loading

    def rebind(layer: Any) -> None:
        layer.weight_scale_swizzled = layer.weight_scale_swizzled.clone()
        original(kernel, layer)

    with replaced(kernel, "process_weights_after_loading", rebind):
        found = mxfp8.judge()
    assert found == {"storage-identity": f"fail {QKV}.weight_scale_swizzled"}


def test_a_weight_that_was_never_sent(mxfp8: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = mxfp8.learner.weights

    def without() -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, tensor) for name, tensor in weights() if name != K)

    monkeypatch.setattr(mxfp8.learner, "weights", without)
    verdicts = mxfp8.sync(poison=0xA5)
    assert verdicts["ledger"].status is Status.FAIL
    assert verdicts["ledger"].subject == K
    assert f"{K}: never arrived" in verdicts["ledger"].message
    assert verdicts["session"].status is Status.FAIL
    assert QKV in verdicts["session"].message
    assert verdicts["weight-bytes"].status is Status.FAIL


def test_a_shard_sent_twice_in_place_of_another(
    mxfp8: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The element count is right, so the engine reports success."""
    weights = mxfp8.learner.weights
    v = K.replace("k_proj", "v_proj")

    def twice() -> Iterator[tuple[str, torch.Tensor]]:
        return ((v if name == K else name, tensor) for name, tensor in weights())

    monkeypatch.setattr(mxfp8.learner, "weights", twice)
    verdicts = mxfp8.sync()
    assert verdicts["session"].status is Status.PASS
    ledger = dict(verdicts["ledger"].evidence)
    assert (ledger[K], ledger[v]) == ("never arrived", "arrived 2 times")
    assert verdicts["weight-bytes"].status is Status.FAIL


def test_a_refused_bucket_is_a_failure_and_a_full_sync_repairs_it(
    mxfp8: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = mxfp8.learner.weights

    def unknown() -> Iterator[tuple[str, torch.Tensor]]:
        yield from weights()
        yield "model.layers.9.mlp.down_proj.weight", torch.zeros(2, 2, dtype=torch.bfloat16)

    with monkeypatch.context() as patch:
        patch.setattr(mxfp8.learner, "weights", unknown)
        verdicts = mxfp8.sync()
    assert verdicts["session"].status is Status.FAIL
    assert "layers.9" in verdicts["session"].message
    assert verdicts["finite"].reason is Reason.UNSUPPORTED
    assert mxfp8.judge() == {}


def test_nothing_is_unreadable(mxfp8: Pair) -> None:
    assert not any(isinstance(p, Unreadable) for p in mxfp8.engine.weight_prints().values())


def test_poison_reaches_every_byte(mxfp8: Pair) -> None:
    counts = mxfp8.engine.poison(0x5A)
    total = sum(held.nbytes for held in mxfp8.learner.prints().values())
    assert sum(counts.values()) == total
    verdict = mxfp8.sync()["weight-bytes"]
    assert verdict.status is Status.PASS
