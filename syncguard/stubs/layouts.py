"""How kernels want their operands: layouts as data, and orders of rows that keep shape and dtype.

A kernel computes with one fixed order, as hardware does. The software that prepares weights for
it looks the same order up in a cache, which can go wrong.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch

__all__ = [
    "LAYOUTS",
    "ROW_ORDERS",
    "Layout",
    "cached_order",
    "forget_orders",
    "inverse_order",
    "true_order",
]

_GROUP: Final = 8
_CACHED: Final = 64

_ORDERS: dict[str, torch.Tensor] = {}
"""Row orders by name and number of rows, made when first needed, shared by all engines."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a kernel wants its operands.

    Attributes:
        name: Of the layout.
        rows: Row order of `ROW_ORDERS`, or empty for the canonical one.
        in_place: Whether rows are reordered over the canonical parameters, or in a twin.
        swizzled: Whether scales are read from a copy in the 128x4 layout.
        cached: Whether the kernel multiplies with a dequantized copy that it makes at first use.
        two_level: Whether scales are taken relative to a level for each half of the rows.
    """

    name: str
    rows: str = ""
    in_place: bool = True
    swizzled: bool = False
    cached: bool = False
    two_level: bool = False


LAYOUTS: Final[Mapping[str, Layout]] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            Layout("plain"),
            Layout("swizzled", swizzled=True),
            Layout("swapped", rows="swap", swizzled=True),
            Layout("interleaved", rows="interleave"),
            Layout("shuffled", rows="shuffle", swizzled=True),
            Layout("twin", rows="shuffle", in_place=False, swizzled=True),
            Layout("cached", cached=True),
            Layout("two_level", two_level=True),
        )
    }
)
"""The layouts by name; a new one is one row. Without scales only the order of rows remains."""


def _swap(rows: int) -> torch.Tensor:
    """Second half first, as kernels that take up before gate."""
    return torch.arange(rows).roll(-(rows // 2))


def _interleave(rows: int) -> torch.Tensor:
    """A row of the first half, then one of the second, and so on."""
    index = torch.arange(rows)
    return torch.where(index % 2 == 0, index // 2, rows // 2 + index // 2)


def _shuffle(rows: int) -> torch.Tensor:
    """Within groups of 8 rows the even ones before the odd ones; rows beyond stay."""
    index = torch.arange(rows)
    within = index % _GROUP
    half = _GROUP // 2
    moved = index - within + torch.where(within < half, 2 * within, 2 * within - _GROUP + 1)
    return torch.where(index < rows - rows % _GROUP, moved, index)


ROW_ORDERS: Final[Mapping[str, Callable[[int], torch.Tensor]]] = MappingProxyType(
    {"interleave": _interleave, "shuffle": _shuffle, "swap": _swap}
)
"""Name to a function of the number of rows; row ``i`` of the kernel is row ``order[i]``."""


def cached_order(name: str, rows: int) -> torch.Tensor:
    """A row order from the module's cache, int64 [rows].

    Whether the cache holds what it should is not looked at.
    """
    key = f"{name}-{rows}"
    if key not in _ORDERS:
        while len(_ORDERS) >= _CACHED:
            del _ORDERS[next(iter(_ORDERS))]
        _ORDERS[key] = ROW_ORDERS[name](rows)
    return _ORDERS[key]


def forget_orders() -> None:
    """Empty the cache of row orders."""
    _ORDERS.clear()


@functools.cache
def true_order(name: str, rows: int) -> torch.Tensor:
    """A row order as the hardware has it."""
    return ROW_ORDERS[name](rows)


@functools.cache
def inverse_order(name: str, rows: int) -> torch.Tensor:
    """Where the hardware keeps each row: the inverse of `true_order`."""
    return torch.argsort(true_order(name, rows))
