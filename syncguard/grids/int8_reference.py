"""The INT8 grid in exact fractions: the specification that the vectorized rule is tested against.

Numbers are Python fractions and every rounding is written out, so no rounding mode or flush-to-zero
setting can change an answer. Source of the rule: see `syncguard.grids.int8`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from syncguard.grids.formats import FP32

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["element", "float32", "quantize_row", "row_scale"]


def float32(value: Fraction) -> Fraction:
    """Round to the nearest float32, ties to even, with subnormals; values must not overflow."""
    if not value:
        return value
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent  # now 2**exponent <= magnitude
    spacing = Fraction(2) ** (max(exponent, 1 - FP32.bias) - FP32.mantissa_bits)
    return round(value / spacing) * spacing  # Python rounds fractions half to even


def row_scale(row: Sequence[Fraction]) -> Fraction:
    """The scale of a row: its largest magnitude over 127.5, or float32's epsilon for zeros.

    Magnitudes so small that the quotient underflows count as zeros.
    """
    scale = float32(max(abs(value) for value in row) / Fraction(255, 2))
    return scale or Fraction(1, 2**FP32.mantissa_bits)


def element(value: Fraction, scale: Fraction) -> int:
    """The element of a value: the float32 quotient, held to -128 and 127, rounded half to even."""
    return round(min(max(float32(value / scale), Fraction(-128)), Fraction(127)))


def quantize_row(row: Sequence[Fraction]) -> tuple[Fraction, list[int]]:
    """Quantize one output channel.

    Args:
        row: Its weights, each a float32 number.

    Returns:
        The scale, a float32 number, and the elements.
    """
    scale = row_scale(row)
    return scale, [element(value, scale) for value in row]
