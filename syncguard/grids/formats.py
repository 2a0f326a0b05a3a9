"""Number formats as frozen data: what a code of so many bits means, and which codes a grid uses.

A new grid is one row of `GRIDS` plus its rounding rule (`syncguard.grids.rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A binary floating-point format; everything not stored follows as a property.

    A *magnitude code* is a code without its sign bit. Magnitude codes are ordered like the values
    they stand for, which is what lets block maxima and roundings work on integers alone.

    Attributes:
        name: Lower-case name, as in `E4M3.name == "e4m3"`.
        exponent_bits: Width of the exponent field.
        mantissa_bits: Width of the fraction field, without the implied leading one.
        bias: Exponent field of the value 1.0.
        largest: Magnitude code of the largest finite value.
        infinity: Magnitude code of infinity, or None if the format has none.
        nan: Magnitude code of the NaN that a conversion writes.
        signed: Whether a sign bit precedes the magnitude code.
        subnormals: Whether exponent field 0 means zero and subnormals. E8M0 has neither.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest: int
    infinity: int | None
    nan: int
    signed: bool = True
    subnormals: bool = True

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return self.exponent_bits + self.mantissa_bits + self.signed

    @property
    def magnitude_mask(self) -> int:
        """All bits of a code except its sign."""
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def sign_bit(self) -> int:
        """The sign bit in place, 0 for an unsigned format."""
        return 1 << (self.bits - 1) if self.signed else 0

    @property
    def overflow(self) -> int:
        """Magnitude code that takes every value too large: infinity, or the largest finite."""
        return self.largest if self.infinity is None else self.infinity

    @property
    def max_value(self) -> float:
        """The largest finite value."""
        significand, exponent = self.split(self.largest)
        return float(significand) * 2.0**exponent

    def is_nan(self, magnitude: int) -> bool:
        """Tell whether a magnitude code stands for NaN.

        Whatever lies beyond the largest finite value and is not infinity is NaN, in the IEEE
        formats as in E4M3 (0x7F) and E8M0 (0xFF).
        """
        return magnitude > self.largest and magnitude != self.infinity

    def split(self, magnitude: int) -> tuple[int, int]:
        """Split a finite magnitude code into integers `(significand, exponent)`.

        Its value is exactly `significand * 2**exponent`.
        """
        field = magnitude >> self.mantissa_bits
        fraction = magnitude & ((1 << self.mantissa_bits) - 1)
        implied = 0 if self.subnormals and field == 0 else 1 << self.mantissa_bits
        lowest = 1 if self.subnormals else 0
        return implied | fraction, max(field, lowest) - self.bias - self.mantissa_bits


E4M3 = NumberFormat("e4m3", 4, 3, bias=7, largest=0x7E, infinity=None, nan=0x7F)
E8M0 = NumberFormat(
    "e8m0", 8, 0, bias=127, largest=0xFE, infinity=None, nan=0xFF, signed=False, subnormals=False
)
BF16 = NumberFormat("bf16", 8, 7, bias=127, largest=0x7F7F, infinity=0x7F80, nan=0x7FC0)
FP16 = NumberFormat("fp16", 5, 10, bias=15, largest=0x7BFF, infinity=0x7C00, nan=0x7E00)
FP32 = NumberFormat(
    "fp32", 8, 23, bias=127, largest=0x7F7FFFFF, infinity=0x7F800000, nan=0x7FC00000
)


@dataclass(frozen=True, slots=True)
class IntegerFormat:
    """Signed integers in two's complement.

    Attributes:
        name: Lower-case name.
        bits: Width of a code in bits.
    """

    name: str
    bits: int

    @property
    def max_value(self) -> float:
        """The largest value; the smallest is one further from zero."""
        return float((1 << (self.bits - 1)) - 1)


@dataclass(frozen=True, slots=True)
class Grid:
    """The values a number format can take for a tensor: elements, and scales if it has any.

    Attributes:
        name: Key in `GRIDS`.
        element: Format of one element.
        element_dtype: Torch dtype that stores the elements.
        block_size: Elements along the reduction dimension that share a scale, 1 without scales;
            0 if all of a row share one.
        scale: Format of a scale, None for a plain grid.
        scale_dtype: Torch dtype that stores the scales, None for a plain grid.
    """

    name: str
    element: NumberFormat | IntegerFormat
    element_dtype: torch.dtype
    block_size: int = 1
    scale: NumberFormat | None = None
    scale_dtype: torch.dtype | None = None

    @property
    def plain(self) -> bool:
        """Whether the grid is just its element format, without scales."""
        return self.scale is None

    @property
    def bits_per_weight(self) -> float:
        """Storage per weight in bits, scales included (8.25 for MXFP8) but for those of rows."""
        shared = self.scale.bits / self.block_size if self.scale and self.block_size else 0.0
        return self.element.bits + shared

    def blocks(self, columns: int) -> int:
        """How many scales a row of so many columns has; on a plain grid none.

        Args:
            columns: Of the weight.
        """
        if self.plain:
            return 0
        return columns // self.block_size if self.block_size else 1


MXFP8 = Grid("mxfp8", E4M3, torch.float8_e4m3fn, 32, E8M0, torch.uint8)
INT8 = Grid("int8", IntegerFormat("int8", 8), torch.int8, 0, FP32, torch.float32)

GRIDS: Mapping[str, Grid] = {
    grid.name: grid
    for grid in (
        MXFP8,
        INT8,
        Grid("bf16", BF16, torch.bfloat16),
        Grid("fp16", FP16, torch.float16),
        Grid("fp32", FP32, torch.float32),
    )
}

SCALED_GRIDS: Mapping[torch.dtype, str] = {
    grid.scale_dtype: name for name, grid in GRIDS.items() if grid.scale_dtype is not None
}
"""Grids with scales, by the dtype of these: it tells them apart where only tensors are at hand."""

SOURCE_FORMATS: Mapping[torch.dtype, NumberFormat] = {
    torch.bfloat16: BF16,
    torch.float16: FP16,
    torch.float32: FP32,
}
