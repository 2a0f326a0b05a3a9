"""Stand-ins for the GPU kernel functions of SGLang's MXFP8 path, in plain torch.

SGLang's own code calls them: its quantization method, loader and linear layers stay as they are.
Each keeps the contract of what it stands for (types, shapes, padding, layout) and raises outside
of it, as a lax stand-in would hide what the real function refuses. Verdicts on an engine with
stand-ins speak of the life cycle of weights, never of the kernels themselves.
"""

import contextlib
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from syncguard.grids import dequantize, quantize, swizzle, unswizzle

__all__ = [
    "SMALLEST",
    "block_scale_interleave",
    "downcast_to_mxfp",
    "install",
    "mm_mxfp8",
    "mxfp8_quantize",
    "providing",
    "require",
    "shuffle_matrix_a",
    "shuffle_matrix_sf_a",
]

_BLOCK: Final = 32
_TILE: Final = 128
_SHUFFLED: Final = (8, 4)  # of 32 rows: one of four columns, of eight each, after the other
SMALLEST: Final = 128
"""FlashInfer's kernels take no smaller N or K."""

_SOURCES: Final = (torch.bfloat16, torch.float16, torch.float32)
_OUTPUTS: Final = (torch.bfloat16, torch.float16)
_BACKENDS: Final = ("auto", "cute-dsl", "cutlass", "trtllm")
_FP8: Final = "sglang.srt.layers.quantization.fp8"
_FP8_UTILS: Final = "sglang.srt.layers.quantization.fp8_utils"


def block_scale_interleave(scales: torch.Tensor) -> torch.Tensor:
    """`flashinfer.block_scale_interleave`: scales ``[N, K // 32]`` to the flat 128x4 layout.

    Args:
        scales: uint8, contiguous.

    Returns:
        uint8 ``[ceil(N / 128) * 128 * ceil(K / 128) * 4]``, padding zero.
    """
    require(scales.dtype == torch.uint8, "block_scale_interleave", "uint8 scales", scales.dtype)
    require(scales.ndim == 2, "block_scale_interleave", "scales [N, K // 32]", scales.shape)
    require(scales.is_contiguous(), "block_scale_interleave", "contiguous", scales.stride())
    return swizzle(scales)


def shuffle_matrix_a(matrix: torch.Tensor, epilogue_tile_m: int) -> torch.Tensor:
    """`flashinfer.shuffle_matrix_a`: the rows of a weight as TRT-LLM's kernel reads them.

    Row r of each 32 goes to place ``8 (r mod 4) + r div 4``.

    Args:
        matrix: ``[N, K]``; N a multiple of 32.
        epilogue_tile_m: Only 128, for which rows move within 32.
    """
    name = "shuffle_matrix_a"
    require(epilogue_tile_m == _TILE, name, "an epilogue tile of 128", epilogue_tile_m)
    require(matrix.ndim == 2 and len(matrix) % 32 == 0, name, "[32 n, K]", matrix.shape)
    return matrix.view(-1, *_SHUFFLED, matrix.shape[1]).transpose(1, 2).reshape(matrix.shape)


def shuffle_matrix_sf_a(
    scales: torch.Tensor, epilogue_tile_m: int, num_elts_per_sf: int = 16
) -> torch.Tensor:
    """`flashinfer.shuffle_matrix_sf_a`: scales with shuffled rows, in the flat 128x4 layout.

    Args:
        scales: uint8 ``[N, K // 32]``; N a multiple of 128, as nothing is padded, and K of 128.
        epilogue_tile_m: Only 128.
        num_elts_per_sf: Only 32.
    """
    name = "shuffle_matrix_sf_a"
    require(num_elts_per_sf == _BLOCK, name, "32 elements a scale", num_elts_per_sf)
    rows, columns = scales.shape
    require(rows % _TILE == columns % 4 == 0, name, "[128 n, 4 k]", scales.shape)
    return block_scale_interleave(shuffle_matrix_a(scales, epilogue_tile_m).contiguous())


def mxfp8_quantize(
    values: torch.Tensor,
    is_sf_swizzled_layout: bool = True,
    alignment: int = _BLOCK,
    backend: str = "cute-dsl",
) -> tuple[torch.Tensor, torch.Tensor]:
    """`flashinfer.mxfp8_quantize` of activations: round-up scales, one for 32 columns.

    Args:
        values: ``[M, K]``, bf16 or fp16; K a multiple of 32.
        is_sf_swizzled_layout: Whether scales come flat in the 128x4 layout, or ``[M * K // 32]``.
        alignment: Of K; only 32.
        backend: Of the original; does not matter here.

    Returns:
        float8_e4m3fn ``[M, K]`` and uint8 scales.
    """
    name = "mxfp8_quantize"
    require(values.dtype in _OUTPUTS, name, "bf16 or fp16 values", values.dtype)
    require(values.ndim == 2 and values.shape[1] % _BLOCK == 0, name, "[M, 32 k]", values.shape)
    require(alignment == _BLOCK, name, "alignment 32", alignment)
    elements, scales = quantize(values.contiguous())
    return elements, swizzle(scales) if is_sf_swizzled_layout else scales.reshape(-1)


def mm_mxfp8(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scales: torch.Tensor,
    b_scales: torch.Tensor,
    out_dtype: torch.dtype,
    use_8x4_sf_layout: bool = False,
    backend: str = "auto",
) -> torch.Tensor:
    """`flashinfer.mm_mxfp8`: the product of two MXFP8 matrices, summed in float32.

    Args:
        a: float8_e4m3fn ``[M, K]``.
        b: float8_e4m3fn ``[K, N]``, column-major: the transposed view of a weight.
        a_scales: uint8, flat, 128x4 layout of ``[M, K // 32]``.
        b_scales: uint8, flat, 128x4 layout of ``[N, K // 32]``; for ``trtllm`` both are shuffled.
        out_dtype: bf16 or fp16.
        use_8x4_sf_layout: Only false.
        backend: ``cutlass``, ``cute-dsl``, ``trtllm`` or ``auto``.

    Returns:
        ``[M, N]``.
    """
    name = "mm_mxfp8"
    require(a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0], name, "[M, K] [K, N]", b.shape)
    (rows, features), outputs = a.shape, b.shape[1]
    for side in (a, b):
        require(side.dtype == torch.float8_e4m3fn, name, "float8_e4m3fn", side.dtype)
    require(b.stride(0) == 1, name, "a column-major second operand", b.stride())
    require(features % _BLOCK == 0, name, "K a multiple of 32", features)
    require(min(features, outputs) >= SMALLEST, name, "N and K of at least 128", b.shape)
    for scales in (a_scales, b_scales):
        require(scales.dtype == torch.uint8 and scales.ndim == 1, name, "flat uint8", scales.dtype)
    require(out_dtype in _OUTPUTS, name, "bf16 or fp16 output", out_dtype)
    require(not use_8x4_sf_layout, name, "the 128x4 layout of scales", "8x4")
    require(backend in _BACKENDS, name, ", ".join(_BACKENDS), backend)
    blocks = features // _BLOCK
    left = dequantize(a, unswizzle(a_scales, rows, blocks), dtype=out_dtype)
    weight, scales = b.t(), unswizzle(b_scales, outputs, blocks)
    if backend == "trtllm":
        weight, scales = _unshuffled(weight.view(torch.uint8)), _unshuffled(scales)
        weight = weight.view(torch.float8_e4m3fn)
    right = dequantize(weight, scales, dtype=out_dtype)
    return torch.nn.functional.linear(left, right)


def downcast_to_mxfp(
    values: torch.Tensor, out_quant_type: torch.dtype, axis: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`triton_kernels.numerics_details.mxfp.downcast_to_mxfp`, for MXFP8 along rows.

    Args:
        values: ``[N, K]``, bf16, fp16 or fp32: the kernel does not compile for anything else,
            such as elements that are quantized already.
        out_quant_type: float8_e4m3fn.
        axis: 1.

    Returns:
        float8_e4m3fn ``[N, K]`` and uint8 scales ``[N, K // 32]``, rounded up.
    """
    name = "downcast_to_mxfp"
    require(values.dtype in _SOURCES, name, "a source in bf16, fp16 or fp32", values.dtype)
    require(out_quant_type == torch.float8_e4m3fn, name, "float8_e4m3fn", out_quant_type)
    require(values.ndim == 2 and axis in (1, -1), name, "rows of a matrix", (values.shape, axis))
    return quantize(values)


def install(backend: str = "cutlass") -> None:
    """Put the stand-ins where SGLang looks for kernels, after its modules are imported.

    Args:
        backend: ``cutlass`` or ``trtllm``: which kernel SGLang is to choose for dense layers.
    """
    utils: Any = importlib.import_module(_FP8_UTILS)
    fp8: Any = importlib.import_module(_FP8)
    chosen = utils.Mxfp8DenseGemmBackend(f"flashinfer_{backend}")
    for module in (utils, fp8):
        module.resolve_mxfp8_dense_gemm_backend = lambda: chosen
    utils.flashinfer_mxfp8_quantize = mxfp8_quantize
    utils.flashinfer_mm_mxfp8 = mm_mxfp8
    utils._get_triton_mxfp8_downcast = lambda: downcast_to_mxfp
    method = fp8.Fp8LinearMethod
    original = method._process_mxfp8_linear_weight_scale
    if not hasattr(original, "syncguard_original"):
        method._process_mxfp8_linear_weight_scale = _with_flashinfer(original)


@contextlib.contextmanager
def providing(modules: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """Let what runs meanwhile import modules by name, and nobody else: others ask what is there."""
    held = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, before in held.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before


def require(holds: bool, name: str, expected: str, got: Any) -> None:
    """Keep a contract.

    Raises:
        ValueError: It does not hold.
    """
    if not holds:
        raise ValueError(f"{name} (stand-in): expected {expected}, got {got}")


def _with_flashinfer(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function import FlashInfer's layouts."""
    module = types.ModuleType("flashinfer")
    for layout in (block_scale_interleave, shuffle_matrix_a, shuffle_matrix_sf_a):
        setattr(module, layout.__name__, layout)

    @functools.wraps(original)
    def with_flashinfer(*args: Any, **kwargs: Any) -> Any:
        with providing({module.__name__: module}):
            return original(*args, **kwargs)

    with_flashinfer.syncguard_original = original  # type: ignore[attr-defined]
    return with_flashinfer


def _unshuffled(matrix: torch.Tensor) -> torch.Tensor:
    """The inverse of `shuffle_matrix_a`."""
    turned = matrix.reshape(-1, *_SHUFFLED[::-1], matrix.shape[1]).transpose(1, 2)
    return turned.reshape(matrix.shape)
