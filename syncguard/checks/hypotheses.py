"""What may have been done to a weight, tried out on the learner's own: a reason, not a guess."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from syncguard.grids import SCALE_RULES, SCALED_GRIDS, quantize, to_grid

__all__ = ["reason_for"]

_NARROW: Final = (torch.float16, torch.float8_e4m3fn)
"""Formats that a weight may have been rounded to on its way."""


def reason_for(
    source: torch.Tensor, rows: Sequence[int], engine: Mapping[str, torch.Tensor]
) -> str:
    """What turns the learner's weight into what the engine holds; empty if nothing known does.

    All that do are told: in a few rows two rules may give the same bytes.

    Args:
        source: The weight as the learner exports it, ``[N, K]``, in the model's dtype.
        rows: Numbers of the rows that were fetched.
        engine: The engine's tensors, those rows only: ``elements`` and ``scales``, or ``values``.
    """
    index = list(rows)
    if engine.keys() == {"values"}:
        held = engine["values"]
        fits = [told for told, weight in _changed(source, index) if _equal(weight, held)]
    elif engine.keys() == {"elements", "scales"}:
        fits = [told for told, weight in _changed(source, index) if _same_grid(weight, engine)]
        fits = fits or list(_other_scales(source, index, engine))
    else:
        fits = []
    return " or ".join(fits)


def _other_scales(
    source: torch.Tensor, index: list[int], engine: Mapping[str, torch.Tensor]
) -> Iterator[str]:
    for rule in SCALE_RULES.values():
        if _same_grid(source[index], engine, rule.name):
            yield f"scales by the rule {rule.name!r} ({rule.used_by})"
    if _equal(_square_scales(source)[index], engine["scales"]):
        yield "scales of blocks of 32 x 32, as Transformer Engine has them for weights in 2D"


def _square_scales(source: torch.Tensor) -> torch.Tensor:
    """The largest scale of every 32 rows: a scale grows with the maximum that it is of."""
    _, scales = quantize(source)
    parts = [scales[first : first + 32] for first in range(0, len(scales), 32)]
    tiles = [part.amax(0).expand_as(part) for part in parts]
    return torch.cat(tiles)


def _changed(source: torch.Tensor, index: list[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """What may have become of the rows on their way, the whole way at first."""
    yield "what the learner exported, which its forward does not use", source[index]
    for told, weight in _deformed(source):
        if not _equal(weight[index], source[index]):
            yield told, weight[index]


def _deformed(source: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if source.shape[0] == source.shape[1]:
        yield "the learner's weight, transposed", source.mT.contiguous()
    for dtype in _NARROW:
        narrow = source.to(dtype).to(source.dtype)
        yield f"the learner's weight, rounded to {str(dtype).removeprefix('torch.')}", narrow


def _same_grid(weight: torch.Tensor, engine: Mapping[str, torch.Tensor], rule: str = "") -> bool:
    """Whether a weight gives the engine's bytes; by the grid's own rule if none is named."""
    grid = SCALED_GRIDS[engine["scales"].dtype]
    made: Any = quantize(weight, rule=rule) if rule else to_grid(weight, grid)
    elements, scales = made
    octets = (elements.view(torch.uint8), engine["elements"].contiguous().view(torch.uint8))
    return _equal(*octets) and _equal(scales, engine["scales"])


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.double(), other.double())
