"""The stand-ins for the kernel of experts: its arithmetic, its orders, its contract."""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from syncguard.engines.sglang import expert_standins
from syncguard.engines.sglang.expert_standins import (
    ActivationType,
    Fp8QuantizationType,
    get_reorder_rows_for_gated_act_gemm_row_indices,
    get_shuffle_matrix_a_row_indices,
    get_shuffle_matrix_sf_a_row_indices,
    product,
    trtllm_fp8_block_scale_routed_moe,
)
from syncguard.engines.sglang.standins import (
    block_scale_interleave,
    providing,
    shuffle_matrix_a,
)
from syncguard.grids import dequantize, quantize

pytestmark = pytest.mark.live

EXPERTS, HIDDEN, INNER, TOKENS = 3, 256, 128, 5
ORDERS = Path(__file__).parents[1] / "data" / "flashinfer-orders.json"
"""What FlashInfer 0.7.4 makes of 256 rows, on a CPU; `test_row_orders_are_those_of_flashinfer`
asks the one that is installed."""
UNIT = torch.finfo(torch.bfloat16).eps


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def laid_out(weight: torch.Tensor, *, gated: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One matrix as SGLang brings it into the kernel's order, step by step."""
    elements, scales = quantize(weight)
    rows = elements.view(torch.uint8)
    if gated:
        order = get_reorder_rows_for_gated_act_gemm_row_indices(rows)
        rows, scales = rows[order], scales[order]
    shuffled = rows[get_shuffle_matrix_a_row_indices(rows, 128)].view(torch.float8_e4m3fn)
    flat = block_scale_interleave(scales[get_shuffle_matrix_sf_a_row_indices(scales, 128)])
    return shuffled, flat.reshape_as(scales)


def call(**changed: Any) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
    """The kernel on random experts, and these as they were before."""
    w13 = values(EXPERTS, 2 * INNER, HIDDEN, seed=1)
    w2 = values(EXPERTS, HIDDEN, INNER, seed=2)
    x = values(TOKENS, HIDDEN, seed=3)
    ids = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]], dtype=torch.int32)
    shares = torch.rand(TOKENS, 2, generator=torch.Generator().manual_seed(4))
    first = [laid_out(one, gated=True) for one in w13]
    second = [laid_out(one, gated=False) for one in w2]
    elements, scales = quantize(x)
    given: dict[str, Any] = {
        "topk_ids": (ids, shares),
        "routing_bias": None,
        "hidden_states": elements,
        "hidden_states_scale": scales,
        "gemm1_weights": torch.stack([e for e, _ in first]),
        "gemm1_weights_scale": torch.stack([s for _, s in first]),
        "gemm2_weights": torch.stack([e for e, _ in second]),
        "gemm2_weights_scale": torch.stack([s for _, s in second]),
        "num_experts": EXPERTS,
        "top_k": 2,
        "n_group": None,
        "topk_group": None,
        "intermediate_size": INNER,
        "local_expert_offset": 0,
        "local_num_experts": EXPERTS,
        "routed_scaling_factor": 1.0,
        "output": torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16),
        "use_shuffled_weight": True,
        "fp8_quantization_type": Fp8QuantizationType.MxFp8,
        "activation_type": ActivationType.Swiglu,
        "tune_max_num_tokens": 8,
    }
    out = trtllm_fp8_block_scale_routed_moe(**{**given, **changed})
    return out, {"w13": w13, "w2": w2, "x": x, "ids": ids, "shares": shares}


def on_grid(tensor: torch.Tensor) -> torch.Tensor:
    return dequantize(*quantize(tensor.contiguous()), dtype=torch.bfloat16)


def test_the_kernel_mixes_experts_of_up_above_gate() -> None:
    out, given = call()
    wanted = torch.zeros(TOKENS, HIDDEN, dtype=torch.double)
    for token in range(TOKENS):
        for choice in range(2):
            expert = int(given["ids"][token, choice])
            up, gate = (on_grid(given["x"])[token] @ on_grid(given["w13"][expert]).T).chunk(2)
            inner = on_grid((torch.nn.functional.silu(gate) * up)[None])
            down = inner @ on_grid(given["w2"][expert]).T
            wanted[token] += down[0].double() * given["shares"][token, choice].double()
    # A rounding of each product may move an element of the inner vector by one step of E4M3.
    assert (out.double() - wanted).norm() / wanted.norm() < 0.01


def test_the_kernel_would_tell_gate_from_up() -> None:
    out, given = call()
    up, gate = given["w13"].chunk(2, dim=1)
    swapped = [laid_out(one, gated=True) for one in torch.cat([gate, up], dim=1)]
    other, _ = call(
        gemm1_weights=torch.stack([e for e, _ in swapped]),
        gemm1_weights_scale=torch.stack([s for _, s in swapped]),
    )
    assert (out - other).norm() / out.norm() > 0.25


@pytest.mark.parametrize("gated", [True, False])
def test_a_product_is_that_of_the_matrix_before_it_was_laid_out(gated: bool) -> None:
    weight, x = values(2 * INNER, HIDDEN), values(4, HIDDEN, seed=1)
    got = product(*laid_out(weight, gated=gated), x, gated=gated)
    assert torch.equal(got, torch.nn.functional.linear(on_grid(x), on_grid(weight)))
    other = product(*laid_out(weight, gated=gated), x, gated=not gated)
    assert not torch.equal(got, other)


def test_rows_of_both_halves_come_in_turn() -> None:
    order = get_reorder_rows_for_gated_act_gemm_row_indices(values(8, 32))
    assert order.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_indices_shuffle_as_the_function_on_matrices_does() -> None:
    matrix = values(256, 128)
    order = get_shuffle_matrix_a_row_indices(matrix, 128)
    assert torch.equal(matrix[order], shuffle_matrix_a(matrix, 128))
    scales = torch.zeros(256, 4, dtype=torch.uint8)
    assert torch.equal(get_shuffle_matrix_sf_a_row_indices(scales, 128), order)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (get_reorder_rows_for_gated_act_gemm_row_indices, ()),
        (get_shuffle_matrix_a_row_indices, (128,)),
        (get_shuffle_matrix_sf_a_row_indices, (128,)),
    ],
)
def test_row_orders_are_those_that_flashinfer_gave(
    function: Callable[..., torch.Tensor], given: tuple[int, ...]
) -> None:
    orders = json.loads(ORDERS.read_text("utf-8"))["orders"]
    assert (
        function(torch.zeros(256, 4, dtype=torch.uint8), *given).tolist()
        == orders[function.__name__]
    )
    numbered = torch.arange(256).view(256, 1)
    assert shuffle_matrix_a(numbered, 128).flatten().tolist() == orders["shuffle_matrix_a"]


def test_row_orders_are_those_of_flashinfer() -> None:
    """They are plain torch, and run on a CPU where FlashInfer is installed."""
    core = pytest.importorskip("flashinfer.fused_moe.core")
    utils = pytest.importorskip("flashinfer.utils")
    matrix = values(256, 128)
    for function, *given in (
        (get_reorder_rows_for_gated_act_gemm_row_indices,),
        (get_shuffle_matrix_a_row_indices, 128),
    ):
        name = function.__name__
        theirs = getattr(core, name, None) or getattr(utils, name)
        assert torch.equal(function(matrix, *given), theirs(matrix, *given))


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "packed ids": ({"topk_ids": torch.zeros(TOKENS, 2, dtype=torch.int32)}, "routed experts"),
    "int64 ids": (
        {"topk_ids": (torch.zeros(TOKENS, 2, dtype=torch.int64), torch.ones(TOKENS, 2))},
        "int32 ids, got torch.int64",
    ),
    "a router's groups": ({"n_group": 2}, "routed tokens"),
    "a router's factor": ({"routed_scaling_factor": 2.5}, "routed tokens"),
    "part of the experts": ({"local_num_experts": 2}, "all 3 experts"),
    "another inner size": ({"intermediate_size": 96}, "an inner size of 128"),
    "canonical weights": ({"use_shuffled_weight": False}, "shuffled rows"),
    "another format": ({"fp8_quantization_type": Fp8QuantizationType.DeepSeekFp8}, "MXFP8"),
    "another activation": ({"activation_type": ActivationType.Geglu}, "SwiGLU"),
    "bf16 activations": ({"hidden_states": values(TOKENS, HIDDEN)}, "float8_e4m3fn"),
    "swizzled activations": (
        {"hidden_states_scale": torch.zeros(1024, dtype=torch.uint8)},
        r"scales of activations \(5, 8\), got \(1024,\)",
    ),
    "float scales": (
        {"gemm2_weights_scale": torch.ones(EXPERTS, HIDDEN, INNER // 32)},
        "uint8 scales, got torch.float32",
    ),
    "a float32 output": ({"output": torch.empty(TOKENS, HIDDEN)}, "a bf16 output"),
    "a clamp": ({"gemm1_clamp_limit": torch.ones(EXPERTS)}, "no gemm1_clamp_limit"),
    "what it does not know": ({"lora": 1}, r"no other argument, got \['lora'\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_outside_its_contract_the_kernel_raises(case: str) -> None:
    changed, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call(**changed)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: get_reorder_rows_for_gated_act_gemm_row_indices(values(3, 4)), r"\[2 n, K\]"),
        (lambda: get_shuffle_matrix_a_row_indices(values(40, 4), 128), r"\[32 n, K\]"),
        (lambda: get_shuffle_matrix_sf_a_row_indices(values(128, 4), 128), "uint8 scales"),
        (
            lambda: get_shuffle_matrix_sf_a_row_indices(torch.zeros(96, 4, dtype=torch.uint8), 128),
            r"\[128 n, 4 k\]",
        ),
        (
            lambda: get_shuffle_matrix_sf_a_row_indices(
                torch.zeros(128, 4, dtype=torch.uint8), 128, num_elts_per_sf=8
            ),
            "16 or 32 elements",
        ),
    ],
)
def test_outside_their_contract_row_orders_raise(broken: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        broken()


def test_modules_are_there_only_while_they_are_wanted() -> None:
    modules = expert_standins._modules()
    before = {name: sys.modules.get(name) for name in modules}
    with providing(modules):
        imported = importlib.import_module("flashinfer.fused_moe")
        assert imported.trtllm_fp8_block_scale_routed_moe is trtllm_fp8_block_scale_routed_moe
    assert {name: sys.modules.get(name) for name in modules} == before
