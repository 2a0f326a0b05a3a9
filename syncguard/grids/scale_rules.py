"""The MXFP8 scale rules found in the field, as thresholds on the bits of the block maximum.

Each rule picks a power of two from the block maximum `a = 2**(E - 127) * (1 + M / 2**23)`, where E
and M are the exponent and fraction fields of `a` as float32. All of them have one form,

    scale byte = clamp(E - offset + (M > above), 0, 254)

so that a rule is a row of data and needs no floating point. The one thing outside that form is
rounding in float32 arithmetic: see `ScaleRule.exceptions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from syncguard.grids.formats import E8M0, FP32

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """One way to choose the E8M0 scale of a block from its maximum.

    Attributes:
        name: Key in `SCALE_RULES`.
        offset: Subtracted from the exponent field of the maximum.
        above: Fractions larger than this raise the scale by one.
        infinity: Scale byte of a block that holds an infinity.
        exceptions: Float32 maxima (bits) whose scale byte differs from the closed form.
        used_by: Who computes scales this way.
    """

    name: str
    offset: int
    above: int
    infinity: int
    used_by: str
    exceptions: Mapping[int, int] = field(default_factory=dict)

    def scale_byte(self, maximum: int) -> int:
        """Return the scale byte of a block whose maximum has the float32 bits `maximum`.

        Args:
            maximum: Non-negative float32 bits, infinity included, NaN excluded.
        """
        if maximum == FP32.infinity:
            return self.infinity
        if maximum in self.exceptions:
            return self.exceptions[maximum]
        exponent, fraction = maximum >> FP32.mantissa_bits, maximum & 0x7FFFFF
        return min(max(exponent - self.offset + (fraction > self.above), 0), E8M0.largest)


SCALE_RULES: Mapping[str, ScaleRule] = {
    rule.name: rule
    for rule in (
        # Round a / 448 up to a power of two, 448 = 1.75 * 2**8: nothing saturates. The exception
        # is the one maximum for which float32 `a * (1 / 448)` underflows to exactly 2**-127.
        ScaleRule(
            "round_up",
            offset=8,
            above=0x600000,
            infinity=254,
            used_by="Transformer Engine, torchao RCEIL, vLLM",
            exceptions={0x04600001: 0},
        ),
        ScaleRule(
            "floor",
            offset=8,
            above=0x7FFFFF,
            infinity=247,
            used_by="OCP MX v1.0 section 6.3, torchao FLOOR, gfloat",
        ),
        # Round the maximum to 3 mantissa bits first, halves up: only 1.9375 and more carries.
        ScaleRule("even", offset=8, above=0x77FFFF, infinity=247, used_by="torchao EVEN, quark"),
        ScaleRule("ceil", offset=8, above=0x000000, infinity=247, used_by="torchao CEIL"),
        # Round a / 448 to the nearest power of two, halves up: 1.5 * 448 = 1.3125 * 2**9.
        ScaleRule(
            "nearest",
            offset=9,
            above=0x27FFFF,
            infinity=246,
            used_by="a cast of a / 448 to torch.float8_e8m0fnu",
        ),
    )
}
