"""The MXFP8 grid in scalar integers: the specification that every fast path is tested against.

Numbers enter and leave as bit patterns (Python ints). There is no floating point, so no rounding
mode, flush-to-zero setting or library version can change an answer.

Source of the rule: Transformer Engine's rowwise MXFP8 quantizer (`cast_mxfp8`, E4M3, blocks of 32
along the reduction dimension), with its two conversion instructions `cvt.rp.satfinite.ue8m0` and
`cvt.rn.satfinite.e4m3` as NVIDIA's `cuda_fp8.hpp` computes them on a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syncguard.grids.formats import E4M3, E8M0, FP32, NumberFormat
from syncguard.grids.scale_rules import SCALE_RULES

if TYPE_CHECKING:
    from collections.abc import Sequence


def round_half_even(significand: int, shift: int) -> int:
    """Return `significand * 2**shift` rounded to the nearest integer, ties to even."""
    if shift >= 0:
        return significand << shift
    kept, dropped = significand >> -shift, significand & ((1 << -shift) - 1)
    half = 1 << (-shift - 1)
    return kept + (dropped > half or (dropped == half and kept & 1))


def encode(significand: int, exponent: int, target: NumberFormat) -> int:
    """Round `significand * 2**exponent` (not negative) to a magnitude code of `target`.

    Round to nearest, ties to even, with subnormals; too large becomes `target.overflow`.
    """
    if significand == 0:
        return 0
    floor_log2 = significand.bit_length() - 1 + exponent
    # The spacing of the format at this value; below the normal range it stops shrinking.
    binade = max(floor_log2, 1 - target.bias)
    units = round_half_even(significand, exponent - binade + target.mantissa_bits)
    # Units count from 0 when subnormal and from 2**mantissa_bits when normal, so adding the
    # exponent field minus one is right for both, and a rounding carry moves to the next binade.
    code = ((binade + target.bias - 1) << target.mantissa_bits) + units
    return target.overflow if code > target.largest else code


def convert(code: int, source: NumberFormat, target: NumberFormat) -> int:
    """Convert a signed code of one format to another, keeping sign, infinity and NaN."""
    magnitude = code & source.magnitude_mask
    sign = target.sign_bit if code & source.sign_bit else 0
    if source.is_nan(magnitude):
        return sign | target.nan
    if magnitude == source.infinity:
        return sign | target.overflow
    return sign | encode(*source.split(magnitude), target)


def block_maximum(codes: Sequence[int], source: NumberFormat = FP32) -> int:
    """Return the largest magnitude of a block as float32 bits; NaN elements do not count."""
    magnitudes = [code & source.magnitude_mask for code in codes]
    largest = max((m for m in magnitudes if not source.is_nan(m)), default=0)
    return convert(largest, source, FP32)


def scale_byte(maximum: int, rule: str = "round_up") -> int:
    """Return the E8M0 scale byte of a block with this maximum (float32 bits, not NaN)."""
    return SCALE_RULES[rule].scale_byte(maximum)


def element_byte(code: int, scale: int, source: NumberFormat = FP32) -> int:
    """Return the E4M3 byte of one element under a scale byte: `x * 2**(127 - scale)`, rounded.

    Too large (and infinity) saturates to +-448. NaN becomes 0x7F whatever its sign, because the
    conversion instruction writes the canonical NaN. Zero keeps its sign. A scale byte of 0 means
    2**-127 like any other, so a block of bf16 subnormals keeps meaningful elements.
    """
    magnitude = code & source.magnitude_mask
    sign = E4M3.sign_bit if code & source.sign_bit else 0
    if source.is_nan(magnitude):
        return E4M3.nan
    if magnitude == source.infinity:
        return sign | E4M3.largest
    significand, exponent = source.split(magnitude)
    return sign | encode(significand, exponent + E8M0.bias - scale, E4M3)


def quantize_block(
    codes: Sequence[int], source: NumberFormat = FP32, rule: str = "round_up"
) -> tuple[int, list[int]]:
    """Quantize one block.

    Args:
        codes: Bit patterns of the block's elements in format `source`; 32 for MXFP8.
        source: `BF16`, `FP16` or `FP32`.
        rule: Key of `SCALE_RULES`.

    Returns:
        The E8M0 scale byte and the E4M3 bytes.
    """
    scale = scale_byte(block_maximum(codes, source), rule)
    return scale, [element_byte(code, scale, source) for code in codes]


def dequantize_element(code: int, scale: int, target: NumberFormat = FP32) -> int:
    """Return the bits of `element * 2**(scale - 127)` in format `target`.

    The product is exact in float32 and bfloat16 except where it leaves the normal range: it then
    rounds to the nearest subnormal (ties to even) or overflows to infinity. Scale byte 255 is
    NaN, and so is element 0x7F; NaN keeps the sign of the element.
    """
    magnitude = code & E4M3.magnitude_mask
    sign = target.sign_bit if code & E4M3.sign_bit else 0
    if E4M3.is_nan(magnitude) or E8M0.is_nan(scale):
        return sign | target.nan
    significand, exponent = E4M3.split(magnitude)
    return sign | encode(significand, exponent + scale - E8M0.bias, target)
