"""Stand-ins for FlashInfer's TRT-LLM kernel of MXFP8 experts, and for the row orders it reads.

SGLang's loader puts the up projection of each expert above its gate, its quantization method then
brings rows and scales into the kernel's order, in place: there is no canonical copy any more, and
the kernel reads nothing else. See `syncguard.engines.sglang.standins` for what stand-ins are.
"""

import contextlib
import enum
import functools
import importlib
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from syncguard.engines.sglang import compat
from syncguard.engines.sglang.standins import (
    block_scale_interleave,
    providing,
    require,
    shuffle_matrix_a,
)
from syncguard.grids import dequantize, mxfp8_product, unswizzle

__all__ = [
    "KERNEL",
    "get_reorder_rows_for_gated_act_gemm_row_indices",
    "get_shuffle_matrix_a_row_indices",
    "get_shuffle_matrix_sf_a_row_indices",
    "install",
    "product",
    "trtllm_fp8_block_scale_routed_moe",
]

KERNEL: Final = "flashinfer_trtllm_routed"
"""SGLang's name of the runner: tokens are routed by SGLang, and the kernel multiplies."""

_BLOCK: Final = 32
_TILE: Final = 128
_OPERATORS: Final = "sglang.srt.layers.moe.flashinfer_trtllm_moe"
_FP8: Final = "sglang.srt.layers.quantization.fp8"
_SCORES: Final = (torch.bfloat16, torch.float32)


class Fp8QuantizationType(enum.IntEnum):
    """`flashinfer.fused_moe.Fp8QuantizationType`."""

    NoneFp8 = 0
    DeepSeekFp8 = 1
    MxFp8 = 2


class ActivationType(enum.IntEnum):
    """`flashinfer.fused_moe.core.ActivationType`, as far as SGLang names it."""

    Gelu = 0
    Silu = 2
    Swiglu = 3
    Geglu = 4
    Relu2 = 6
    Situ = 9


def get_reorder_rows_for_gated_act_gemm_row_indices(matrix: torch.Tensor) -> torch.Tensor:
    """FlashInfer's function of the name: rows of both halves in turn.

    Args:
        matrix: ``[N, K]``, N even: up above gate.

    Returns:
        int64 ``[N]``: row r of the reordered matrix is this row of the given one.
    """
    name = "get_reorder_rows_for_gated_act_gemm_row_indices"
    require(matrix.ndim == 2 and len(matrix) % 2 == 0, name, "[2 n, K]", matrix.shape)
    return torch.arange(len(matrix)).view(2, -1).T.flatten()


def get_shuffle_matrix_a_row_indices(matrix: torch.Tensor, epilogue_tile_m: int) -> torch.Tensor:
    """FlashInfer's function of the name: see `syncguard.engines.sglang.standins.shuffle_matrix_a`.

    Args:
        matrix: ``[N, K]``; N a multiple of 32.
        epilogue_tile_m: Only 128.
    """
    require(matrix.ndim == 2, "get_shuffle_matrix_a_row_indices", "[32 n, K]", matrix.shape)
    return shuffle_matrix_a(torch.arange(len(matrix))[:, None], epilogue_tile_m).flatten()


def get_shuffle_matrix_sf_a_row_indices(
    scales: torch.Tensor, epilogue_tile_m: int, num_elts_per_sf: int = 16
) -> torch.Tensor:
    """FlashInfer's function of the name: the order of rows of scales.

    Args:
        scales: uint8 ``[N, K // 32]``; N a multiple of 128, as nothing is padded, and K of 128.
        epilogue_tile_m: Only 128.
        num_elts_per_sf: 16 or 32; the order is the same.
    """
    name = "get_shuffle_matrix_sf_a_row_indices"
    require(scales.dtype == torch.uint8, name, "uint8 scales", scales.dtype)
    require(num_elts_per_sf in (16, _BLOCK), name, "16 or 32 elements a scale", num_elts_per_sf)
    fits = scales.ndim == 2 and len(scales) % _TILE == scales.shape[-1] % 4 == 0
    require(fits, name, "[128 n, 4 k]", scales.shape)
    return get_shuffle_matrix_a_row_indices(scales, epilogue_tile_m)


def product(
    elements: torch.Tensor, scales: torch.Tensor, x: torch.Tensor, *, gated: bool
) -> torch.Tensor:
    """``x @ weight.T`` of one expert, with both operands on the MXFP8 grid, summed in float32.

    Args:
        elements: float8_e4m3fn ``[N, K]`` in the kernel's order of rows.
        scales: uint8 ``[N, K // 32]``, the shape that SGLang keeps the kernel's layout in.
        x: ``[rows, K]``, bf16.
        gated: Whether the rows are those of two halves in turn, too.

    Returns:
        ``[rows, N]``, outputs in the order in which SGLang's loader puts rows.
    """
    rows, features = elements.shape
    order = get_shuffle_matrix_a_row_indices(elements, _TILE)
    if gated:
        order = get_reorder_rows_for_gated_act_gemm_row_indices(elements)[order]
    plain = unswizzle(scales.flatten(), rows, features // _BLOCK)
    shuffled = mxfp8_product(x.contiguous(), elements, plain)
    return torch.empty_like(shuffled).index_copy_(1, order, shuffled)


def trtllm_fp8_block_scale_routed_moe(
    topk_ids: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    routing_bias: torch.Tensor | None,
    hidden_states: torch.Tensor,
    hidden_states_scale: torch.Tensor,
    gemm1_weights: torch.Tensor,
    gemm1_weights_scale: torch.Tensor,
    gemm2_weights: torch.Tensor,
    gemm2_weights_scale: torch.Tensor,
    num_experts: int,
    top_k: int,
    n_group: int | None,
    topk_group: int | None,
    intermediate_size: int,
    local_expert_offset: int,
    local_num_experts: int,
    routed_scaling_factor: float | None,
    *,
    output: torch.Tensor,
    use_shuffled_weight: bool = False,
    weight_layout: int = 0,
    fp8_quantization_type: Fp8QuantizationType = Fp8QuantizationType.DeepSeekFp8,
    activation_type: ActivationType = ActivationType.Swiglu,
    **tuning: Any,
) -> torch.Tensor:
    """`flashinfer.fused_moe.trtllm_fp8_block_scale_routed_moe`, for gated experts in MXFP8.

    Args:
        topk_ids: int32 ``[M, top_k]`` with their weights, bf16 or float32 of the same shape.
        routing_bias: None: SGLang has routed.
        hidden_states: float8_e4m3fn ``[M, H]``; H a multiple of 128.
        hidden_states_scale: uint8 ``[M, H // 32]``.
        gemm1_weights: float8_e4m3fn ``[E, 2 I, H]``, up above gate, then in the kernel's order.
        gemm1_weights_scale: uint8 ``[E, 2 I, H // 32]``, the same, in the 128x4 layout.
        gemm2_weights: float8_e4m3fn ``[E, H, I]``; I a multiple of 128.
        gemm2_weights_scale: uint8 ``[E, H, I // 32]``.
        num_experts: E, as no expert is on another rank.
        top_k: Experts of a token.
        n_group: None.
        topk_group: None.
        intermediate_size: I.
        local_expert_offset: 0.
        local_num_experts: E.
        routed_scaling_factor: 1 or None: SGLang's weights have it already.
        output: bf16 ``[M, H]``, which is filled.
        use_shuffled_weight: True.
        weight_layout: 0: rows of K.
        fp8_quantization_type: MXFP8.
        activation_type: SwiGLU.
        tuning: Of the original; does not matter here.

    Returns:
        ``output``.
    """
    name = "trtllm_fp8_block_scale_routed_moe"
    _require_no_more(name, tuning)
    require(isinstance(topk_ids, tuple), name, "ids and weights of routed experts", "packed ids")
    ids, shares = topk_ids
    experts, hidden, inner = gemm2_weights.shape
    require(ids.dtype == torch.int32 and shares.dtype in _SCORES, name, "int32 ids", ids.dtype)
    shapes = {
        "ids": (ids, (len(hidden_states), top_k)),
        "weights of experts": (shares, (len(hidden_states), top_k)),
        "scales of activations": (hidden_states_scale, (len(hidden_states), hidden // _BLOCK)),
        "w13": (gemm1_weights, (experts, 2 * inner, hidden)),
        "scales of w13": (gemm1_weights_scale, (experts, 2 * inner, hidden // _BLOCK)),
        "scales of w2": (gemm2_weights_scale, (experts, hidden, inner // _BLOCK)),
        "an output": (output, (len(hidden_states), hidden)),
    }
    for what, (tensor, shape) in shapes.items():
        require(tuple(tensor.shape) == shape, name, f"{what} {shape}", tuple(tensor.shape))
    for tensor in (hidden_states, gemm1_weights, gemm2_weights):
        require(tensor.dtype == torch.float8_e4m3fn, name, "float8_e4m3fn", tensor.dtype)
    for tensor in (hidden_states_scale, gemm1_weights_scale, gemm2_weights_scale):
        require(tensor.dtype == torch.uint8, name, "uint8 scales", tensor.dtype)
    whole = (num_experts, local_num_experts, local_expert_offset) == (experts, experts, 0)
    require(whole, name, f"all {experts} experts", (num_experts, local_num_experts))
    require(intermediate_size == inner, name, f"an inner size of {inner}", intermediate_size)
    require(hidden % _TILE == inner % _TILE == 0, name, "sizes that 128 divides", (hidden, inner))
    routed = (routing_bias, n_group, topk_group) == (None, None, None)
    require(routed and routed_scaling_factor in (None, 1.0), name, "routed tokens", "a router's")
    require(use_shuffled_weight and weight_layout == 0, name, "shuffled rows of K", weight_layout)
    require(
        fp8_quantization_type == Fp8QuantizationType.MxFp8, name, "MXFP8", fp8_quantization_type
    )
    require(activation_type == ActivationType.Swiglu, name, "SwiGLU", activation_type)
    require(output.dtype == torch.bfloat16, name, "a bf16 output", output.dtype)
    x = dequantize(hidden_states, hidden_states_scale, dtype=output.dtype)
    mixed = torch.zeros_like(output, dtype=torch.float32)
    for expert in sorted(set(ids.flatten().tolist())):
        tokens, choices = torch.where(ids == expert)
        up, gate = product(
            gemm1_weights[expert], gemm1_weights_scale[expert], x[tokens], gated=True
        ).chunk(2, dim=-1)
        outputs = product(
            gemm2_weights[expert], gemm2_weights_scale[expert], activated(gate, up), gated=False
        )
        mixed.index_add_(0, tokens, outputs.float() * shares[tokens, choices, None].float())
    return output.copy_(mixed)


def activated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """What is between both products."""
    return torch.nn.functional.silu(gate) * up


def install() -> None:
    """Put the stand-ins where SGLang's method for experts looks, after its modules are imported."""
    fp8: Any = importlib.import_module(_FP8)
    method = fp8.Fp8MoEMethod
    compat.route_as_on_gpus()
    compat.run_on_cpu(_OPERATORS, f"{trtllm_fp8_block_scale_routed_moe.__name__}_out_wrapper")
    for name, guard in (("_process_mxfp8_moe_weights", _blackwell), ("apply", _as_it_is)):
        original = getattr(method, name)
        if not hasattr(original, "syncguard_original"):
            setattr(method, name, _equipped(original, guard))


def _equipped(original: Any, guard: Any) -> Any:
    @functools.wraps(original)
    def equipped(*args: Any, **kwargs: Any) -> Any:
        with providing(_modules()), guard():
            return original(*args, **kwargs)

    equipped.syncguard_original = original  # type: ignore[attr-defined]
    return equipped


@contextlib.contextmanager
def _blackwell() -> Iterator[None]:
    """SGLang's method refuses any other machine, which it asks for here."""
    fp8: Any = importlib.import_module(_FP8)
    held = fp8._is_cuda, fp8.get_platform
    fp8._is_cuda, fp8.get_platform = True, lambda: types.SimpleNamespace(is_sm100=True)
    try:
        yield
    finally:
        fp8._is_cuda, fp8.get_platform = held


@contextlib.contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@functools.cache
def _modules() -> Mapping[str, types.ModuleType]:
    """FlashInfer's modules, as far as SGLang's code for these experts imports from them."""
    held: Mapping[str, tuple[Any, ...]] = {
        "flashinfer": (block_scale_interleave,),
        "flashinfer.fused_moe": (Fp8QuantizationType, trtllm_fp8_block_scale_routed_moe),
        "flashinfer.fused_moe.core": (
            ActivationType,
            get_reorder_rows_for_gated_act_gemm_row_indices,
        ),
        "flashinfer.utils": (
            get_shuffle_matrix_a_row_indices,
            get_shuffle_matrix_sf_a_row_indices,
        ),
    }
    modules = {}
    for name, functions in held.items():
        modules[name] = types.ModuleType(name)
        vars(modules[name]).update({function.__name__: function for function in functions})
    return modules


_TUNING: Final = frozenset(
    {
        *("enable_pdl", "tune_max_num_tokens", "routing_method_type"),
        *("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit"),
    }
)


def _require_no_more(name: str, tuning: Mapping[str, Any]) -> None:
    require(not tuning.keys() - _TUNING, name, "no other argument", sorted(tuning.keys() - _TUNING))
    for option in ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit"):
        require(tuning.get(option) is None, name, f"no {option}", tuning.get(option))
