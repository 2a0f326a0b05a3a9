"""Chosen inputs for serving kernels.

Rows of the identity, times the unit of the grid (`syncguard.grids.unit_of`), are exact: a one-hot
row quantizes without error and its product with the weight has one non-zero term, so the kernel's
output is a column of the weight that it computes with. Gaussian rows are what published checks use;
they also exercise activation rounding.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.fingerprint import granule_of, value_print
from syncguard.observations import ProbeTurn

__all__ = [
    "block_rows",
    "exact_prints",
    "flushed",
    "identity_rows",
    "narrowed",
    "random_rows",
    "served_weight",
    "turn_rows",
    "unit_rows",
]

_CHUNK: Final = 256
"""Identity rows per call: bounds the memory of a probe to this many output rows."""

_NARROWER: Final = {torch.float32: torch.bfloat16}


def identity_rows(
    features: int, dtype: torch.dtype, chunk: int = _CHUNK
) -> Iterator[tuple[int, torch.Tensor]]:
    """Rows of the identity matrix in chunks.

    Args:
        features: Size of the matrix.
        dtype: Of the rows.
        chunk: Rows in a chunk; the last may be shorter.

    Yields:
        The number of the first row and ``[rows, features]``.
    """
    for first in range(0, features, chunk):
        count = min(chunk, features - first)
        rows = torch.zeros(count, features, dtype=dtype)
        rows[torch.arange(count), torch.arange(first, first + count)] = 1
        yield first, rows


def exact_prints(
    serve: Callable[[torch.Tensor], torch.Tensor],
    features: int,
    dtype: torch.dtype,
    *,
    first: int = 0,
    total: int | None = None,
    unit: int = 1,
) -> NDArray[np.uint64]:
    """Row prints of the weight that a linear serving path computes with.

    Args:
        serve: Maps ``[rows, features]`` to ``[rows, outputs]``, without bias.
        features: Input features of the layer.
        dtype: Of the model; the path's outputs are compared in this dtype.
        first: Number of its first input feature in the whole layer, on a rank that has some.
        total: Input features of the whole layer, if the path has not all of them.
        unit: What the rows of the identity are multiplied with, see `syncguard.grids.unit_of`.

    Returns:
        uint64 ``[outputs]``, equal to `value_print` of the dequantized weight, times the unit,
        `narrowed`, exactly if the path computes with these values (up to the sign of zero, and to
        2^-64).
    """
    totals: dict[torch.dtype, NDArray[np.uint64]] = {}
    exact = dict.fromkeys((_NARROWER.get(dtype, dtype), dtype), True)
    width = total or features
    for start, rows in identity_rows(features, dtype):
        columns = serve(rows * unit).to(dtype).T
        for form in exact:
            values = columns.to(form)
            exact[form] &= form == dtype or torch.equal(values.to(dtype), columns)
            granule = granule_of(width * form.itemsize)
            part = value_print(values, granule=granule, first=(first + start) * form.itemsize)
            totals[form] = totals[form] + part if form in totals else part
    return totals[next(form for form in exact if exact[form])]


def narrowed(values: torch.Tensor) -> torch.Tensor:
    """Values as bf16 where they are float32 numbers that bf16 holds too, else as they are.

    A model in bf16 may have routers in float32 on one side and not on the other. What both
    compute with is the same then, and to be printed the same.
    """
    form = _NARROWER.get(values.dtype, values.dtype)
    narrow = values.to(form)
    return narrow if torch.equal(narrow.to(values.dtype), values) else values


def served_weight(
    serve: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """The weight that a serving path computes with, column by column.

    Args:
        serve: Maps ``[rows, K]`` to ``[rows, N]``.
        shape: N and K.
        dtype: Of what it serves.
    """
    served = torch.empty(shape, dtype=dtype)
    for first, rows in identity_rows(shape[1], dtype):
        served[:, first : first + len(rows)] = serve(rows).T
    return served


def random_rows(rows: int, features: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Standard normal rows, the same on both sides of a sync.

    Args:
        rows: How many.
        features: Their length.
        seed: Of the generator.
        dtype: Of the result. Rows are drawn in float32 and rounded to bf16 first, so that they
            are the same numbers for a side that computes in float32.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, features, generator=generator).to(torch.bfloat16).to(dtype)


def block_rows(features: int, seed: int, dtype: torch.dtype, block: int = 32) -> torch.Tensor:
    """Rows that are +-1 in one block and 0 elsewhere, one row a block.

    Args:
        features: Length of a row, a multiple of ``block``.
        seed: Of the signs.
        dtype: Of the rows.
        block: Elements of a block.

    Returns:
        ``[features // block, features]``.
    """
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (features // block, block), generator=generator) * 2 - 1
    rows = torch.zeros(features // block, features // block, block, dtype=dtype)
    index = torch.arange(features // block)
    rows[index, index] = signs.to(dtype)
    return rows.reshape(features // block, features)


def unit_rows(features: int, turn: int, dtype: torch.dtype, block: int = 32) -> torch.Tensor:
    """Rows of the identity, one a block: all of them are had in as many turns as a block is long.

    Args:
        features: Length of a row, a multiple of ``block``.
        turn: Which element of each block; counts on from the last one to the first.
        dtype: Of the rows.
        block: Elements of a block.

    Returns:
        ``[features // block, features]``.
    """
    rows = torch.zeros(features // block, features, dtype=dtype)
    index = torch.arange(features // block)
    rows[index, index * block + turn % block] = 1
    return rows


def flushed(values: torch.Tensor) -> torch.Tensor | None:
    """Values as products in bf16 give them on devices that flush subnormal numbers to zero.

    Args:
        values: Any floating-point tensor; bfloat16 and float32 have the same subnormals.

    Returns:
        A copy without subnormals; none if there are none.
    """
    if values.dtype not in (torch.bfloat16, torch.float32):
        return None
    tiny = (values != 0) & (values.abs() < torch.finfo(values.dtype).smallest_normal)
    return torch.where(tiny, 0, values) if tiny.any() else None


def turn_rows(turn: ProbeTurn, features: int, dtype: torch.dtype) -> torch.Tensor:
    """The rows of a layer's turn: signs in blocks, or units.

    Args:
        turn: Which.
        features: Length of a row.
        dtype: Of the rows.
    """
    make = block_rows if turn.sums else unit_rows
    return make(features, turn.number, dtype)
