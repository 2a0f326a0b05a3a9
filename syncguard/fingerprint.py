"""Fingerprints of tensors: 64-bit sums that do not depend on layout or order.

The fingerprint of a row is the sum, modulo 2^64, of ``mix(granule + key(position))`` over the
granules of the row, where a granule is a short run of bytes along the row and its position is
counted from the start of the whole row. So the parts of a row that live on different ranks add up
to the row's fingerprint, and rows may be stored in any order. The specification is scalar:
`syncguard._fingerprint_reference`. Any change of one granule changes the fingerprint, since the
mixer is a bijection; all other differences cancel with the probability of equal random numbers.

Two processes find where tensors differ without moving them: they compare `row_prints`, then the
`block_prints` of a few of the rows that differ, and `differing_blocks` names rows and columns.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from syncguard._fingerprint_rows import copied, matrices, sign_bits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from numpy.typing import NDArray

__all__ = [
    "GRANULE",
    "block_prints",
    "combined",
    "differing_blocks",
    "fingerprint",
    "granule_of",
    "row_prints",
    "value_print",
]

GRANULE: Final = 8
"""Bytes of a granule where the row's length allows it."""

_GRANULES: Final = (8, 4, 2, 1)


def row_prints(
    tensor: torch.Tensor, *, granule: int | None = None, first: int = 0
) -> NDArray[np.uint64]:
    """One fingerprint per row.

    Rows are read where they are, whatever their distance; a tensor whose rows are not contiguous
    is copied some rows at a time.

    Args:
        tensor: Any dtype and device, [rows, columns]; a vector counts as one row, more dimensions
            are flattened into rows.
        granule: Bytes that stay together in every layout of interest: 1, 2, 4 or 8; by default
            the largest that divides a row. Shards of a row need that of the whole row.
        first: Bytes of the logical row before this shard.

    Returns:
        uint64 [rows].

    Raises:
        ValueError: ``granule`` is none of these, or divides neither the row nor ``first``.
    """
    return _prints(tensor, granule, first, 0, None)[:, 0]


def fingerprint(tensor: torch.Tensor) -> int:
    """One fingerprint of a whole tensor: its row prints, `combined`."""
    return combined(row_prints(tensor))


def combined(rows: NDArray[np.uint64], *, first: int = 0) -> int:
    """One fingerprint of rows: their prints, weighted by odd keys of the rows' numbers.

    Linear in the row prints, so the fingerprints of shards add, of rows and of columns. A change
    of one row always changes it; swapped rows cancel with a probability of 2^-58, since the
    difference of two odd weights is even.

    Args:
        rows: uint64 [rows], row prints.
        first: Rows of the logical tensor before these.

    Returns:
        In 0 to 2^64 - 1.
    """
    weights = _backend("cpu").keys(first, rows.size) | np.uint64(1)
    return int((rows * weights).sum(dtype=np.uint64))


def value_print(
    values: torch.Tensor, *, granule: int | None = None, first: int = 0
) -> NDArray[np.uint64]:
    """Row prints of values, in which both zeros are the same.

    A kernel's sum turns -0 into +0, so probes cannot tell them apart. Arguments and result are
    those of `row_prints`.

    Raises:
        ValueError: As `row_prints`, or several values share a byte.
    """
    return _prints(values, granule, first, sign_bits(values.dtype), None)[:, 0]


def block_prints(
    tensor: torch.Tensor,
    rows: Sequence[int],
    block: int = 32,
    *,
    granule: int | None = None,
    first: int = 0,
    values: bool = False,
) -> NDArray[np.uint64]:
    """Fingerprints of blocks of columns of some rows; the blocks of a row add up to its print.

    Args:
        tensor: As for `row_prints`.
        rows: Numbers of rows, in any order; a vector has row 0 only.
        block: Columns in a block, the last may have fewer; a whole number of granules.
        granule: As for `row_prints`.
        first: As for `row_prints`; blocks are counted from the start of the shard.
        values: Whether both zeros are the same, as in `value_print`.

    Returns:
        uint64 [rows asked for, blocks].

    Raises:
        ValueError: As `row_prints`, there is no such row, or a block cuts a granule.
    """
    shape = tensor.shape[:-1] or (1,)
    total = math.prod(shape)
    if any(not 0 <= row < total for row in rows):
        raise ValueError(f"rows {list(rows)} of a tensor with {total} rows, counted from 0")
    whole = tensor.detach().reshape(1, -1) if tensor.ndim < 2 else tensor.detach()
    picked = [whole[tuple(int(i) for i in np.unravel_index(row, shape))] for row in rows]
    # Not torch.stack of the rows themselves: it lacks some dtypes.
    octets = [copied(row).view(torch.uint8) for row in picked]
    signs = sign_bits(tensor.dtype) if values else 0
    width = tensor.itemsize
    none = torch.empty((0, whole.shape[-1] * width), dtype=torch.uint8, device=tensor.device)
    chosen = torch.stack(octets) if octets else none
    return _prints(chosen, granule, first, signs, block * width)


def differing_blocks(
    mine: NDArray[np.uint64], theirs: NDArray[np.uint64], rows: Sequence[int], block: int = 32
) -> list[tuple[int, slice]]:
    """Where two tensors differ, from the `block_prints` of both for the same rows and blocks.

    Args:
        mine: uint64 [rows, blocks].
        theirs: The same of the other side.
        rows: As given to `block_prints`.
        block: As given to `block_prints`.

    Returns:
        Row number and columns of each differing block, in order; the last block of a row may end
        before its slice does.

    Raises:
        ValueError: The sides do not have the same rows and blocks.
    """
    if mine.shape != theirs.shape or len(mine) != len(rows):
        raise ValueError(
            f"prints of {mine.shape} and {theirs.shape} blocks for {len(rows)} rows: both sides "
            "must print the same rows in the same blocks"
        )
    found = np.argwhere(mine != theirs).tolist()
    return [(rows[index], slice(at * block, (at + 1) * block)) for index, at in found]


def granule_of(width: int) -> int:
    """The granule by default of rows of so many bytes: the largest that divides them.

    Shards of a weight agree with the whole row only if they are printed with the row's own.
    """
    # The lowest bit of a number is the largest power of two that divides it.
    return min(GRANULE, width & -width) or GRANULE


def _prints(
    tensor: torch.Tensor, granule: int | None, first: int, signs: int, block: int | None
) -> NDArray[np.uint64]:
    """Print blocks of bytes of rows, or whole rows; returns uint64 [rows, blocks]."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.ndim < 2:
        tensor = tensor.reshape(1, -1)
    width = tensor.shape[-1] * tensor.itemsize
    size = granule or granule_of(width)
    parts = 1 if block is None else -(-width // max(block, 1))
    block = max(width, size) if block is None else block
    if size not in _GRANULES or width % size or first % size or block % size or block < 1:
        raise ValueError(
            f"a row of {width} bytes from byte {first} in blocks of {block} is not a whole number "
            f"of granules of {size}: give a granule of 1, 2, 4 or 8 bytes that divides all three"
        )
    if not tensor.numel():
        return np.zeros((math.prod(tensor.shape[:-1]), parts), np.uint64)
    backend = _backend(tensor.device.type)
    pieces: list[NDArray[np.uint64]] = [
        backend.prints(matrix, size, first // size, block // size, signs)
        for matrix in ((tensor,) if tensor.ndim == 2 else matrices(tensor))
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


@functools.cache
def _backend(device: str) -> Any:
    """Return the module that prints tensors of a device; each gives the same numbers."""
    backend: ModuleType
    if device != "cpu":
        from syncguard import _fingerprint_torch as backend
    else:
        try:
            from syncguard import _fingerprint_numba as backend
        except ImportError:
            from syncguard import _fingerprint_numpy as backend
    return backend
