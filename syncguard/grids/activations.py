"""What kernels do to their inputs, by grid: the rounding, and the rows that it leaves exact.

A one-hot row leaves a kernel as one column of the weight. On most grids its number is 1. Where
each token has a scale of its own, `amax / 127` in float32, it is 127: the scale is 1 then, where
1 / 127 is rounded, and would move values beside ties to the next bf16 number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from syncguard.grids import int8, mxfp8
from syncguard.grids.formats import INT8, MXFP8

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "int8_product",
    "mxfp8_product",
    "round_activations",
    "rounds_activations",
    "unit_columns",
    "unit_of",
]

_LARGEST: Final = 127
_UNITS: Final[Mapping[str, int]] = {INT8.name: _LARGEST}


def rounds_activations(grid: str) -> bool:
    """Whether activations of this name have lost precision against the model's dtype."""
    return grid in _ROUNDING


def round_activations(x: torch.Tensor, grid: str) -> torch.Tensor:
    """Values of activations as a kernel computes with them.

    Args:
        x: `[rows, K]` in the model's dtype.
        grid: What the kernel rounds them to; a name that is none of these rounds nothing.

    Returns:
        float32 `[rows, K]`.
    """
    return _ROUNDING.get(grid, torch.Tensor.float)(x)


def unit_of(grid: str) -> int:
    """The number of a one-hot row that kernels for weights on this grid round exactly."""
    return _UNITS.get(grid, 1)


def unit_columns(elements: torch.Tensor, scales: torch.Tensor, grid: str) -> torch.Tensor:
    """What one-hot rows of `unit_of` give, one column of the weight each.

    Args:
        elements: Of the weight, as `syncguard.grids.to_grid` gives them.
        scales: Theirs.
        grid: One with scales.

    Returns:
        float32 `[N, K]`, before the rounding to the model's dtype.
    """
    return _COLUMNS[grid](elements, scales)


def int8_product(
    x: torch.Tensor,
    elements: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`x @ weight.T + bias` of a W8A8 kernel: sums of integers, times scales, of tokens last.

    Args:
        x: `[..., K]` in the model's dtype.
        elements: int8 `[N, K]`.
        scales: float32 `[N, 1]`.
        bias: `[N]`, added before the rounding to the dtype of `x`, or none.

    Returns:
        `[..., N]` in the dtype of `x`. Integer sums beyond 2**24 round, which no bf16 shows.
    """
    steps, token_scales = _token_steps(x)
    sums = torch.nn.functional.linear(steps, elements.float())
    values = sums * scales[:, 0] * token_scales
    return (values if bias is None else values + bias.float()).to(x.dtype)


def mxfp8_product(x: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T` with both operands on the MXFP8 grid.

    Args:
        x: `[..., K]` in the model's dtype.
        elements: float8_e4m3fn `[N, K]`.
        scales: uint8 `[N, K // 32]`, not swizzled.

    Returns:
        `[..., N]` in the dtype of `x`.
    """
    weight = mxfp8.dequantize(elements, scales, dtype=x.dtype)
    rounded = mxfp8.dequantize(*mxfp8.quantize(x), dtype=x.dtype)
    return torch.nn.functional.linear(rounded, weight)


def _token_steps(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers of each token, as float32, and its scale: as vLLM's kernels quantize at run time."""
    values = x.float()
    scales = values.abs().amax(-1, keepdim=True) / _LARGEST
    steps = (values * scales.reciprocal()).round().clamp(-_LARGEST - 1, _LARGEST)
    return torch.where(scales == 0, 0, steps), scales


def _round_tokens(x: torch.Tensor) -> torch.Tensor:
    steps, scales = _token_steps(x)
    return steps * scales


def _round_blocks(x: torch.Tensor) -> torch.Tensor:
    return mxfp8.dequantize(*mxfp8.quantize(x), dtype=torch.float32)


_COLUMNS: Final[Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    INT8.name: lambda elements, scales: int8.dequantize(elements, scales, times=_LARGEST),
    MXFP8.name: lambda elements, scales: mxfp8.dequantize(elements, scales, torch.float32),
}

_ROUNDING: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    INT8.name: _round_tokens,
    MXFP8.name: _round_blocks,
}
