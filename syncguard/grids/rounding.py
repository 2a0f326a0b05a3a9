"""The rounding rule of each grid: put a weight on it, and read values back.

Code that must serve any grid calls these two functions with a grid's name. A new grid is a row of
`GRIDS` and a row here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from syncguard.grids import int8, mxfp8
from syncguard.grids.formats import GRIDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


@dataclass(frozen=True, slots=True)
class RoundingRule:
    """How to get on and off one grid.

    Attributes:
        quantize: Weight to elements and scales (None on a plain grid).
        dequantize: Elements, scales and dtype to values.
    """

    quantize: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]
    dequantize: Callable[[torch.Tensor, torch.Tensor | None, torch.dtype], torch.Tensor]


def _cast_to(dtype: torch.dtype) -> RoundingRule:
    """A plain grid: IEEE round to nearest even, which torch's casts follow."""
    return RoundingRule(
        lambda weight: (weight.detach().to(dtype), None),
        lambda elements, _, target: elements.detach().to(target),
    )


def _scaled(
    name: str,
    quantize: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    dequantize: Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor],
) -> RoundingRule:
    """A grid with scales, without which its elements mean nothing."""

    def with_scales(
        elements: torch.Tensor, scales: torch.Tensor | None, dtype: torch.dtype
    ) -> torch.Tensor:
        if scales is None:
            raise ValueError(
                f"from_grid: grid {name!r} needs scales, got None. Pass the "
                f"{GRIDS[name].scale_dtype} scales that belong to the elements."
            )
        return dequantize(elements, scales, dtype)

    return RoundingRule(quantize, with_scales)


ROUNDING: Mapping[str, RoundingRule] = {
    "int8": _scaled("int8", int8.quantize, int8.dequantize),
    "mxfp8": _scaled("mxfp8", mxfp8.quantize, mxfp8.dequantize),
    **{name: _cast_to(grid.element_dtype) for name, grid in GRIDS.items() if grid.plain},
}


def to_grid(weight: torch.Tensor, grid: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Round a weight to a grid.

    Args:
        weight: `[..., K]`, in the dtype that the learner rounds.
        grid: Key of `GRIDS`.

    Returns:
        Elements in the grid's `element_dtype`, and scales or None.

    Raises:
        ValueError: If there is no such grid, or the weight does not fit it.
    """
    return _rule("to_grid", grid).quantize(weight)


def from_grid(
    elements: torch.Tensor, scales: torch.Tensor | None, grid: str, dtype: torch.dtype
) -> torch.Tensor:
    """Return the values that elements and scales on a grid stand for.

    Args:
        elements: As `to_grid` returns them.
        scales: As `to_grid` returns them.
        grid: Key of `GRIDS`.
        dtype: Dtype of the values; bfloat16 or float32 for `mxfp8`.

    Raises:
        ValueError: If there is no such grid, or the tensors do not fit it.
    """
    return _rule("from_grid", grid).dequantize(elements, scales, dtype)


def _rule(function: str, grid: str) -> RoundingRule:
    if grid not in ROUNDING:
        raise ValueError(
            f"{function}: there is no grid {grid!r}. Choose one of {', '.join(sorted(ROUNDING))}."
        )
    return ROUNDING[grid]
