"""Number formats, quantization rules and scale layouts: pure functions on tensors, no engine."""

from syncguard.grids.activations import (
    int8_product,
    mxfp8_product,
    round_activations,
    rounds_activations,
    unit_columns,
    unit_of,
)
from syncguard.grids.canary import canary
from syncguard.grids.formats import GRIDS, SCALED_GRIDS, Grid, NumberFormat
from syncguard.grids.mxfp8 import dequantize, quantize, quantize_and_compare
from syncguard.grids.rounding import from_grid, to_grid
from syncguard.grids.scale_layout import swizzle, swizzled_index, swizzled_size, unswizzle
from syncguard.grids.scale_rules import SCALE_RULES, ScaleRule

__all__ = [
    "GRIDS",
    "SCALED_GRIDS",
    "SCALE_RULES",
    "Grid",
    "NumberFormat",
    "ScaleRule",
    "canary",
    "dequantize",
    "from_grid",
    "int8_product",
    "mxfp8_product",
    "quantize",
    "quantize_and_compare",
    "round_activations",
    "rounds_activations",
    "swizzle",
    "swizzled_index",
    "swizzled_size",
    "to_grid",
    "unit_columns",
    "unit_of",
    "unswizzle",
]
