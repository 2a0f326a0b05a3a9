"""MXFP8: quantize, dequantize and compare, byte for byte as Transformer Engine does.

Rule, special values and sources: `syncguard.grids.reference`, the scalar specification.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal

import torch

from syncguard.grids import _torch_kernels
from syncguard.grids.formats import MXFP8, SOURCE_FORMATS
from syncguard.grids.scale_rules import SCALE_RULES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from syncguard.grids.scale_rules import ScaleRule

Backend = Literal["auto", "numba", "torch"]

BLOCK = MXFP8.block_size


def quantize(
    weight: torch.Tensor,
    *,
    rule: str = "round_up",
    backend: Backend = "auto",
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a weight along its last dimension, the reduction dimension.

    Args:
        weight: `[..., K]` bfloat16, float16 or float32, K a multiple of 32. Quantize the dtype
            the learner quantizes: going through bfloat16 or not changes 3 % of the bytes.
        rule: Scale rule, a key of `SCALE_RULES`. Only `round_up` is Transformer Engine's.
        backend: `numba` (CPU, `round_up` only), `torch` (any device), or `auto`: numba where it
            applies and is installed. The bytes are the same.
        out: Contiguous elements and scales to write into. Fresh memory costs more time than the
            computation.

    Returns:
        Elements `[..., K]` float8_e4m3fn and scales `[..., K // 32]` uint8 (E8M0), contiguous,
        on the weight's device.

    Raises:
        ValueError: If shapes, dtypes, devices, rule or backend do not fit.
    """
    source = _checked_weight("quantize", weight)
    scale_rule = _checked_rule("quantize", rule)
    blocks_shape = [*weight.shape[:-1], weight.shape[-1] // BLOCK]
    if out is None:
        elements = torch.empty(weight.shape, dtype=MXFP8.element_dtype, device=weight.device)
        scales = torch.empty(blocks_shape, dtype=torch.uint8, device=weight.device)
    else:
        elements, scales = out
        _check_out("quantize", "out[0]", elements, weight.shape, MXFP8.element_dtype, weight)
        _check_out("quantize", "out[1]", scales, blocks_shape, torch.uint8, weight)
    kernels = _numba("quantize", backend, weight.device, scale_rule) or _torch_kernels
    element_bytes = elements.view(torch.uint8).view(-1, BLOCK)
    kernels.quantize_blocks(source, element_bytes, scales.view(-1), scale_rule)
    return elements, scales


def quantize_and_compare(
    weight: torch.Tensor,
    elements: torch.Tensor,
    scales: torch.Tensor,
    *,
    rule: str = "round_up",
    backend: Backend = "auto",
) -> tuple[int, int]:
    """Count how many bytes differ from what `quantize(weight)` would give, without keeping it.

    Args:
        weight: As for `quantize`.
        elements: `[..., K]` float8_e4m3fn or uint8, the shape of `weight`.
        scales: `[..., K // 32]` uint8 or float8_e8m0fnu.
        rule: As for `quantize`.
        backend: As for `quantize`.

    Returns:
        `(element bytes differing, scale bytes differing)`.

    Raises:
        ValueError: If shapes, dtypes, devices, rule or backend do not fit.
    """
    source = _checked_weight("quantize_and_compare", weight)
    scale_rule = _checked_rule("quantize_and_compare", rule)
    element_bytes, scale_bytes = _checked_grid("quantize_and_compare", elements, scales)
    if elements.shape != weight.shape or elements.device != weight.device:
        raise ValueError(
            f"quantize_and_compare: elements must have the weight's shape and device, "
            f"{list(weight.shape)} on {weight.device}, got {list(elements.shape)} on "
            f"{elements.device}. Compare one parameter, or one shard of it, at a time."
        )
    kernels = _numba("quantize_and_compare", backend, weight.device, scale_rule) or _torch_kernels
    counts: tuple[int, int] = kernels.compare_blocks(source, element_bytes, scale_bytes, scale_rule)
    return counts


def dequantize(
    elements: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
    *,
    backend: Backend = "auto",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the values `element * 2**(scale - 127)`.

    Exact in both dtypes, except that values outside the normal range round to the nearest
    subnormal or overflow to infinity. Scale byte 255 and element 0x7F give NaN.

    Args:
        elements: `[..., K]` float8_e4m3fn or uint8, K a multiple of 32.
        scales: `[..., K // 32]` uint8 or float8_e8m0fnu, not swizzled.
        dtype: bfloat16 or float32.
        backend: As for `quantize`.
        out: Contiguous tensor of the result's shape and dtype to write into.

    Returns:
        `[..., K]` of `dtype`, contiguous.

    Raises:
        ValueError: If shapes, dtypes, devices or backend do not fit.
    """
    element_bytes, scale_bytes = _checked_grid("dequantize", elements, scales)
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(
            f"dequantize: dtype must be torch.bfloat16 or torch.float32, got {dtype}. "
            f"Dequantize to torch.float32 and convert that."
        )
    if out is None:
        out = torch.empty(elements.shape, dtype=dtype, device=elements.device)
    else:
        _check_out("dequantize", "out", out, elements.shape, dtype, elements)
    kernels = _numba("dequantize", backend, elements.device) or _torch_kernels
    kernels.dequantize_blocks(element_bytes, scale_bytes, out.view(-1, BLOCK))
    return out


def _checked_weight(function: str, weight: torch.Tensor) -> torch.Tensor:
    """Validate a weight and return it as contiguous blocks [B, 32]."""
    if weight.dtype not in SOURCE_FORMATS:
        names = ", ".join(str(dtype) for dtype in SOURCE_FORMATS)
        raise ValueError(
            f"{function}: weight dtype must be one of {names}, got {weight.dtype}. "
            f"Pass the tensor that the learner quantizes, before quantization."
        )
    if weight.ndim == 0 or weight.shape[-1] % BLOCK:
        raise ValueError(
            f"{function}: the last dimension of the weight must be a multiple of {BLOCK} "
            f"(one scale per {BLOCK} elements), got shape {list(weight.shape)}. Check that the "
            f"reduction dimension comes last and that a shard is cut at multiples of {BLOCK}."
        )
    return weight.detach().contiguous().view(-1, BLOCK)


def _checked_grid(
    function: str, elements: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Validate elements with their scales and return them as bytes [B, 32] and [B]."""
    if elements.dtype not in (torch.float8_e4m3fn, torch.uint8):
        raise ValueError(
            f"{function}: elements must be torch.float8_e4m3fn (or its bytes as torch.uint8), "
            f"got {elements.dtype}. An engine that dequantizes at load holds no elements."
        )
    if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu):
        raise ValueError(
            f"{function}: scales must be torch.uint8 or torch.float8_e8m0fnu (E8M0 bytes), got "
            f"{scales.dtype}. Float scales belong to another grid than MXFP8."
        )
    expected = [*elements.shape[:-1], elements.shape[-1] // BLOCK] if elements.ndim else []
    if elements.ndim == 0 or elements.shape[-1] % BLOCK or list(scales.shape) != expected:
        raise ValueError(
            f"{function}: elements of shape {list(elements.shape)} take scales of shape "
            f"[..., K // {BLOCK}] = {expected} with K a multiple of {BLOCK}, got "
            f"{list(scales.shape)}. Crop padding, and unswizzle a 128x4 buffer first."
        )
    if elements.device != scales.device:
        raise ValueError(
            f"{function}: elements and scales must be on one device, got {elements.device} and "
            f"{scales.device}. Move the scales, they are the smaller part."
        )
    return (
        elements.detach().contiguous().view(torch.uint8).view(-1, BLOCK),
        scales.detach().contiguous().view(torch.uint8).view(-1),
    )


def _checked_rule(function: str, rule: str) -> ScaleRule:
    if rule not in SCALE_RULES:
        raise ValueError(
            f"{function}: there is no scale rule {rule!r}. Choose one of "
            f"{', '.join(sorted(SCALE_RULES))}."
        )
    return SCALE_RULES[rule]


def _check_out(
    function: str,
    name: str,
    out: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    source: torch.Tensor,
) -> None:
    expected = (list(shape), dtype, source.device, True)
    got = (list(out.shape), out.dtype, out.device, out.is_contiguous())
    if got != expected:
        raise ValueError(
            f"{function}: {name} must have (shape, dtype, device, contiguous) {expected}, got "
            f"{got}. Leave it out to have one made."
        )


def _numba(
    function: str, backend: str, device: torch.device, rule: ScaleRule | None = None
) -> ModuleType | None:
    """Return the numba kernels if they are asked for, or apply; None means torch."""
    if backend not in ("auto", "numba", "torch"):
        raise ValueError(f"{function}: no backend {backend!r}. Choose one of auto, numba, torch.")
    applies = device.type == "cpu" and (rule is None or rule.name == "round_up")
    if backend == "numba" and not applies:
        raise ValueError(
            f"{function}: backend 'numba' runs on the CPU and knows only rule 'round_up', got "
            f"device {device}{f' and rule {rule.name!r}' if rule else ''}. "
            f"Use backend='auto' or 'torch'."
        )
    found = None if backend == "torch" or not applies else _load_numba()
    if backend == "numba" and found is None:
        raise ValueError(
            f"{function}: backend 'numba' cannot be imported. Install it with "
            f"pip install 'syncguard[fast]', or use backend='auto' or 'torch' (same bytes, slower)."
        )
    return found


@cache
def _load_numba() -> ModuleType | None:
    """Import the numba backend when it is first used: numba takes about a second to import."""
    try:
        from syncguard.grids import _numba_backend
    except ImportError:
        return None
    return _numba_backend
