"""A live INT8 W8A8 engine: what vLLM's reload breaks is found, and so is each fault without it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from syncguard.errors import UsageError
from syncguard.grids import int8_product
from syncguard.guard import Guard
from syncguard.observations import WeightPrint
from syncguard.probes import random_rows
from syncguard.profiles import PROFILES
from syncguard.survey.findings import FINDINGS
from syncguard.verdict import Reason, Status, Verdict
from tests.live.conftest import clear_cache, make_pair
from tests.pairs import BUCKET_BYTES, Heard, Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("int8")]

QKV = "model.layers.0.self_attn.qkv_proj"
K = "model.layers.0.self_attn.k_proj.weight"
ROW = 5
FUSED_ROW = 128 + ROW

KEPT: dict[int, torch.Tensor] = {}
"""By the kernel's identity, the scales that a mended kernel reads."""


@pytest.fixture(scope="module")
def as_it_is(models: Path) -> Pair:
    return make_pair(models, "tiny-qwen3", "int8-w8a8")


@pytest.fixture
def kept_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM with its fault mended: a kernel reads scales that live as long as it does."""
    from vllm import _custom_ops as ops
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel

    original = CPUInt8ScaledMMLinearKernel.process_weights_for_onednn
    create = ops.create_onednn_scaled_mm

    def process(self: Any, layer: Any) -> None:
        def with_own_scales(weight: Any, scales: torch.Tensor, *rest: Any) -> Any:
            held = KEPT.setdefault(id(self), torch.empty_like(scales))
            return create(weight, held.copy_(scales), *rest)

        with monkeypatch.context() as patch:
            patch.setattr(ops, "create_onednn_scaled_mm", with_own_scales)
            original(self, layer)

    monkeypatch.setattr(CPUInt8ScaledMMLinearKernel, "process_weights_for_onednn", process)


@pytest.fixture
def int8(as_it_is: Pair, kept_scales: None) -> Pair:
    """A mended engine that has just been synchronized and found healthy."""
    del kept_scales
    as_it_is.sync()  # its kernels get scales of their own
    clear_cache(as_it_is)
    assert as_it_is.judge() == {}
    return as_it_is


def kernel_of(pair: Pair, path: str = QKV) -> Any:
    return pair.model.get_submodule(path).scheme.kernel


@contextmanager
def processing(pair: Pair, replaced: Callable[[Any, Callable[[], None]], None]) -> Iterator[None]:
    """Post-process the fused q, k and v by another function: it gets the layer, and vLLM's way."""
    kernel = kernel_of(pair)
    original = kernel.process_weights_after_loading
    kernel.process_weights_after_loading = lambda layer: replaced(layer, lambda: original(layer))
    try:
        yield
    finally:
        del kernel.process_weights_after_loading


def rows_told(verdict: Verdict) -> dict[str, str]:
    return dict(verdict.evidence)


def test_every_condition_passes_with_full_coverage(int8: Pair) -> None:
    verdicts = int8.sync(poison=0xA5)
    assert {v.condition for v in verdicts.values()} >= {f"C{n}" for n in range(1, 8)}
    applicable = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert {v.check: v.message for v in applicable if v.status is not Status.PASS} == {}
    weights = len(int8.learner.layers())
    assert verdicts["layer-set"].coverage.layers_checked == 16
    assert verdicts["weight-bytes"].coverage.layers_checked == weights
    assert verdicts["exact-probe"].coverage.layers_checked == 16
    assert verdicts["random-probe"].coverage.complete
    assert verdicts["ledger"].coverage.layers_checked == weights


@pytest.mark.parametrize("outliers", [1, 40])
def test_the_learner_rolls_out_as_the_kernel_computes(int8: Pair, outliers: int) -> None:
    """Bit for bit, activations of each token rounded too."""
    path = "model.layers.0.mlp.down_proj"
    layer, grid = int8.model.get_submodule(path), int8.learner.grid_tensors(f"{path}.weight")
    x = random_rows(512, 256, 1, torch.bfloat16)
    x[:, 3] *= outliers
    served = layer.quant_method.apply(layer, x, bias=None)
    assert torch.equal(served, int8_product(x, grid["elements"], grid["scales"]))
    assert not torch.equal(served, x @ int8.learner.dequantized(f"{path}.weight").T)


def test_equal_weights_change_nothing(int8: Pair) -> None:
    verdict = int8.sync(same_weights=True)["equal-sync"]
    assert verdict.status is Status.PASS
    assert verdict.coverage.layers_checked > 30


def test_weights_of_an_optimizer_step_are_served(int8: Pair) -> None:
    report = int8.learner.step(1e-6)
    assert report.elements_changed > 0
    assert int8.judge(poison=0x5A) == {}


def test_a_budgeted_probe_sees_every_element_in_its_turn(int8: Pair) -> None:
    guard = Guard(
        int8.learner, int8.engine, Heard(), profile=PROFILES["production"], vocabulary=512
    )
    _, verdicts = guard.sync(bucket_bytes=BUCKET_BYTES)
    found = {v.check: v for v in verdicts}
    assert found["block-probe"].status is Status.PASS
    assert not [v.check for v in verdicts if v.status is Status.FAIL]


def test_layer_table_asks_the_live_scheme_and_kernel(int8: Pair) -> None:
    table = {layer.module: layer for layer in int8.engine.layers()}
    qkv = table[QKV]
    assert (qkv.method, qkv.kernel) == (
        "CompressedTensorsLinearMethod",
        "CPUInt8ScaledMMLinearKernel",
    )
    assert qkv.parts[1] == K
    assert (qkv.grid, qkv.activations) == ("int8", "int8")
    assert (table["lm_head"].grid, table["lm_head"].parts) == ("bf16", ("lm_head.weight",))


def test_elements_are_packed_and_scales_can_be_read(int8: Pair) -> None:
    theirs, mine = int8.engine.weight_prints()[K], int8.learner.prints()[K]
    assert isinstance(theirs, WeightPrint)
    assert (theirs.grid, theirs.shape, set(theirs.rows)) == ("int8", mine.shape, {"scales"})
    assert (theirs.rows["scales"] == mine.rows["scales"]).all()
    assert int8.engine.poison(0x5A)[K] == 4 * mine.shape[0]
    assert int8.judge() == {}


def test_a_channel_scale_that_the_kernel_kept_is_found_by_row(int8: Pair) -> None:
    def one_stale(layer: Any, usual: Callable[[], None]) -> None:
        scales = KEPT[id(layer.scheme.kernel)]
        old = scales[FUSED_ROW].clone()
        usual()
        scales[FUSED_ROW] = old

    int8.learner.perturb(2, scale=0.5)
    with processing(int8, one_stale):
        verdicts = int8.sync()
    assert rows_told(verdicts["exact-probe"]).keys() == {K}
    assert (
        f"1 of 64 output rows differ, the first is {ROW}" in rows_told(verdicts["exact-probe"])[K]
    )
    assert rows_told(verdicts["weight-bytes"]).keys() == {K}
    assert verdicts["layer-set"].status is Status.PASS


def test_the_lowest_bit_of_one_element_is_found_by_row(int8: Pair) -> None:
    def one_bit(layer: Any, usual: Callable[[], None]) -> None:
        layer.weight.data[FUSED_ROW, 77] ^= 1
        usual()

    with processing(int8, one_bit):
        verdicts = int8.sync()
    told = rows_told(verdicts["exact-probe"])
    assert told.keys() == {K}
    assert f"1 of 64 output rows differ, the first is {ROW}" in told[K]
    assert verdicts["weight-bytes"].subject == K
    assert "seen by the exact probe" in verdicts["weight-bytes"].message
    assert verdicts["layer-set"].status is verdicts["ledger"].status is Status.PASS


@pytest.mark.parametrize("bit", range(8))
def test_any_bit_of_an_element_is_served_as_another_number(int8: Pair, bit: int) -> None:
    def one_bit(layer: Any, usual: Callable[[], None]) -> None:
        layer.weight.data[FUSED_ROW, 0] ^= -128 if bit == 7 else 1 << bit
        usual()

    with processing(int8, one_bit):
        int8.sync()
    probe, values = int8.engine.probe_exact()[K], int8.learner.value_prints()[K]
    assert isinstance(probe, WeightPrint)
    assert (probe.rows["values"] != values).nonzero()[0].tolist() == [ROW]


def test_a_packed_matrix_that_was_left_stale_is_found(int8: Pair) -> None:
    """F3 the other way round: old elements meet fresh scales."""

    def keeps_packed(layer: Any, usual: Callable[[], None]) -> None:
        kernel = layer.scheme.kernel
        packed = kernel.dnnl_handler
        usual()
        kernel.dnnl_handler = packed

    int8.learner.perturb(1, scale=0.5)
    with processing(int8, keeps_packed):
        found = int8.judge()
    assert found["exact-probe"].startswith("fail model.layers.0.self_attn.")
    assert found["random-probe"].startswith("fail model.layers.0.self_attn.")
    assert not {"layer-set", "ledger", "storage-identity", "source-truth"} & found.keys()


def test_a_scale_that_is_wrong_beside_a_right_kernel_is_found(int8: Pair) -> None:
    scales = int8.model.get_submodule(QKV).weight_scale.data
    scales[FUSED_ROW] *= 2
    prints, wanted = int8.engine.weight_prints(), int8.learner.prints()
    scales[FUSED_ROW] /= 2
    wrong = {
        name: (held.rows["scales"] != wanted[name].rows["scales"]).nonzero()[0].tolist()
        for name, held in prints.items()
        if isinstance(held, WeightPrint) and "scales" in held.rows
    }
    assert {name: rows for name, rows in wrong.items() if rows} == {K: [ROW]}


def test_a_reload_leaves_kernels_with_scales_that_are_freed(as_it_is: Pair) -> None:
    """vLLM as it is: nothing is injected."""
    verdicts = as_it_is.sync()
    failing: dict[str, list[str]] = {}
    for verdict in verdicts.values():
        if verdict.status is Status.FAIL:
            failing.setdefault(verdict.condition, []).append(verdict.subject)
    assert "C3" in failing
    assert FINDINGS["vllm_int8_scales"].explains(failing)
    assert verdicts["ledger"].status is verdicts["layer-set"].status is Status.PASS
    scales = as_it_is.engine.weight_prints()[K]
    assert isinstance(scales, WeightPrint)
    assert (scales.rows["scales"] == as_it_is.learner.prints()[K].rows["scales"]).all()


def test_experts_have_no_kernel_and_vllm_says_so(models: Path) -> None:
    text = r"no kernel for this model.*on a CPU\n  got: No Int8 MoE backend.*\n  what to do: take"
    with pytest.raises(UsageError, match=text):
        make_pair(models, "tiny-qwen3-moe", "int8-w8a8")
