"""MXFP8 on plain torch: every scale rule, every input, any device.

Most blocks go through one float32 multiplication by a power of two and torch's cast. *Special*
blocks (tiny, infinite, NaN) go through integers, which no flush-to-zero setting and no version of
that cast can change.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from syncguard.grids.formats import BF16, E4M3, FP32
from syncguard.grids.reference import dequantize_element

if TYPE_CHECKING:
    from collections.abc import Iterator

    from syncguard.grids.scale_rules import ScaleRule

# Chunks in blocks of 32. The largest operation that torch keeps on the calling thread has 32,768
# elements: its threads gain little on work this light, and where cores are shared they wait for
# each other (a slowdown of 50 was seen). Larger temporaries than a few MiB return to the system
# after each call, which then faults their pages in again.
_SHARED_CPU_CHUNK = 1 << 10
_SINGLE_THREAD_CHUNK = 1 << 14
_DEVICE_CHUNK = 1 << 20

# Below this scale byte a product or an element can be a float32 subnormal that still matters.
_SAFE_SCALE = 24

_INFINITY = 0x7F800000
_FRACTION = 0x7FFFFF


def quantize_blocks(
    weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor, rule: ScaleRule
) -> None:
    """Quantize `weight` [B, 32] into `elements` [B, 32] uint8 and `scales` [B] uint8."""
    for chunk in _chunks(weight):
        elements[chunk], scales[chunk] = _quantize_chunk(weight[chunk], rule)


def compare_blocks(
    weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor, rule: ScaleRule
) -> tuple[int, int]:
    """Count differing element and scale bytes between quantized `weight` and the given bytes."""
    elements_differ, scales_differ = 0, 0
    for chunk in _chunks(weight):
        own_elements, own_scales = _quantize_chunk(weight[chunk], rule)
        elements_differ += int((own_elements != elements[chunk]).sum())
        scales_differ += int((own_scales != scales[chunk]).sum())
    return elements_differ, scales_differ


def dequantize_blocks(elements: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Dequantize `elements` [B, 32] uint8 and `scales` [B] uint8 into `out` [B, 32]."""
    table = _dequantize_table(out.dtype).to(out.device)
    for chunk in _chunks(elements):
        index = (scales[chunk].int() << 8)[:, None] + elements[chunk]
        torch.index_select(table, 0, index.view(-1), out=out[chunk].view(-1))


def _chunks(blocks: torch.Tensor) -> Iterator[slice]:
    step = _SHARED_CPU_CHUNK if torch.get_num_threads() > 1 else _SINGLE_THREAD_CHUNK
    if blocks.device.type != "cpu":
        step = _DEVICE_CHUNK
    return (slice(start, start + step) for start in range(0, blocks.shape[0], step))


def _quantize_chunk(weight: torch.Tensor, rule: ScaleRule) -> tuple[torch.Tensor, torch.Tensor]:
    values = weight.float()
    codes = values.view(torch.int32)
    maximum = (codes & FP32.magnitude_mask).amax(dim=1)
    scale = _scale_bytes(maximum, rule)
    # 2**(127 - scale) is a float32 whose exponent field is 254 - scale.
    inverse = ((254 - scale) << 23).view(torch.float32)
    # The clamp saturates: only from torch 2.12 on does the cast do so by itself.
    scaled = (values * inverse[:, None]).clamp_(-E4M3.max_value, E4M3.max_value)
    elements = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    special = ((scale < _SAFE_SCALE) & (maximum > 0)) | (maximum >= _INFINITY)
    if special.any():
        blocks = special.nonzero().flatten()
        elements[blocks], scale[blocks] = _quantize_special(codes[blocks], rule)
    return elements, scale.to(torch.uint8)


def _quantize_special(codes: torch.Tensor, rule: ScaleRule) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize any blocks, [B, 32] float32 bits as int32, in integers."""
    magnitudes = codes & FP32.magnitude_mask
    maximum = torch.where(magnitudes > _INFINITY, 0, magnitudes).amax(dim=1)
    scale = _scale_bytes(maximum, rule)
    return _element_bytes(codes, scale), scale


def _scale_bytes(maximum: torch.Tensor, rule: ScaleRule) -> torch.Tensor:
    """Vector twin of `ScaleRule.scale_byte`, int32 to int32."""
    above = (maximum & _FRACTION) > rule.above
    scale = ((maximum >> 23) - rule.offset).add_(above).clamp_(0, 254)
    scale.masked_fill_(maximum == _INFINITY, rule.infinity)
    for bits, byte in rule.exceptions.items():
        scale.masked_fill_(maximum == bits, byte)
    return scale


def _element_bytes(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Vector twin of `reference.element_byte`: int32 float32 bits [B, 32], scale bytes [B]."""
    magnitude = codes & FP32.magnitude_mask
    field, fraction = magnitude >> 23, magnitude & _FRACTION
    # The fraction of a subnormal, converted as an integer, is a normal float32, 2**149 times the
    # value: read the normalized exponent and fraction there.
    normalized = fraction.float().view(torch.int32)
    is_subnormal = field == 0
    field = torch.where(is_subnormal, (normalized >> 23) - 149, field)
    significand = torch.where(is_subnormal, normalized, fraction) & _FRACTION | (_FRACTION + 1)
    # The exponent field in E4M3. Where it would be below 1 the result is subnormal: shift further.
    exponent = field - scale[:, None] + E4M3.bias
    shift = 20 + (1 - exponent).clamp_(0, 11)
    odd = (significand >> shift) & 1
    units = (significand + (1 << (shift - 1)) - 1 + odd) >> shift
    code = (((exponent.clamp(1, 32) - 1) << 3) + units).clamp_(max=E4M3.largest)
    # Zero has come out as zero: its field, -149, shifts everything away.
    code.masked_fill_(magnitude == _INFINITY, E4M3.largest)
    code |= (codes < 0).int() << 7
    return code.masked_fill_(magnitude > _INFINITY, E4M3.nan).to(torch.uint8)


@cache
def _dequantize_table(dtype: torch.dtype) -> torch.Tensor:
    """Return all values of the grid, at index `scale << 8 | element`, from the specification."""
    target, storage = (BF16, torch.uint16) if dtype == torch.bfloat16 else (FP32, torch.uint32)
    codes = [dequantize_element(code, scale, target) for scale in range(256) for code in range(256)]
    # Engines change the default device while they load a model, so name it.
    return torch.tensor(codes, dtype=torch.int64, device="cpu").to(storage).view(dtype)
