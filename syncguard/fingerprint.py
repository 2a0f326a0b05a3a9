"""Fingerprints of tensors: 64-bit sums that do not depend on layout or order.

The fingerprint of a row is the sum, modulo 2^64, of ``mix(granule + key(position))`` over the
granules of the row, where a granule is a short run of bytes along the row and its position is
counted from the start of the whole row. So the parts of a row that live on different ranks add up
to the row's fingerprint, and rows may be stored in any order. The mixer is the finalizer of
SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
"""

import functools
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["GRANULE", "fingerprint", "row_prints", "value_print"]

GRANULE: Final = 8
"""Bytes of a granule where the row's length allows it."""

_KEY: Final = 0x9E3779B97F4A7C15
_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS: Final = (30, 27, 31)
_MASK: Final = (1 << 64) - 1
_CHUNK_BYTES: Final = 1 << 20


def mix(value: int) -> int:
    """The scalar mixer, the specification of the array form.

    Args:
        value: A 64-bit number.

    Returns:
        A 64-bit number; the map is a bijection.
    """
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        value = ((value ^ (value >> shift)) * multiplier) & _MASK
    return value ^ (value >> _SHIFTS[-1])


def row_prints(
    tensor: torch.Tensor, *, granule: int | None = None, first: int = 0
) -> NDArray[np.uint64]:
    """One fingerprint per row.

    Args:
        tensor: Any dtype, [rows, columns]; a vector counts as one row, more dimensions are
            flattened into rows.
        granule: Bytes that stay together in every layout of interest: 1, 2, 4 or 8; by default
            the largest that divides a row.
        first: Bytes of the logical row before this shard.

    Returns:
        uint64 [rows].

    Raises:
        ValueError: ``granule`` divides neither the row nor ``first``.
    """
    data = tensor.detach().contiguous()
    rows = 1 if data.ndim < 2 else int(np.prod(data.shape[:-1]))
    octets = data.reshape(-1).view(torch.uint8).reshape(rows, -1).numpy()
    width = octets.shape[1]
    size = granule or next(size for size in (8, 4, 2, 1) if width % size == 0)
    if size not in (1, 2, 4, 8) or width % size or first % size:
        raise ValueError(
            f"a row of {width} bytes from byte {first} is not a whole number of granules of {size}"
        )
    granules = octets.view(f"<u{size}")
    keys = _keys(first // size, granules.shape[1])
    out = np.empty(rows, np.uint64)
    step = max(1, _CHUNK_BYTES // max(1, granules.shape[1] * 8))
    for start in range(0, rows, step):
        out[start : start + step] = _mixed(granules[start : start + step], keys).sum(
            axis=1, dtype=np.uint64
        )
    return out


def fingerprint(tensor: torch.Tensor) -> int:
    """One fingerprint of a whole tensor: its row prints, weighted by keys of their positions.

    Linear in the row prints, so fingerprints of shards of rows add too.
    """
    rows = row_prints(tensor)
    with np.errstate(over="ignore"):
        return int((rows * (_keys(0, rows.size) | np.uint64(1))).sum(dtype=np.uint64))


def value_print(
    values: torch.Tensor, *, granule: int | None = None, first: int = 0
) -> NDArray[np.uint64]:
    """Row prints of values, in which both zeros are the same.

    A kernel's sum turns -0 into +0, so probes cannot tell them apart. Arguments and result are
    those of `row_prints`.
    """
    zeros = torch.zeros((), dtype=values.dtype)
    return row_prints(torch.where(values == 0, zeros, values), granule=granule, first=first)


@functools.lru_cache(maxsize=64)
def _keys(first: int, count: int) -> NDArray[np.uint64]:
    positions = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        keys = _mixed(positions * np.uint64(_KEY), np.uint64(0))
    keys.flags.writeable = False
    return keys


def _mixed(
    granules: NDArray[np.unsignedinteger], keys: NDArray[np.uint64] | np.uint64
) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        value: NDArray[np.uint64] = granules.astype(np.uint64) + keys
        for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
            value ^= value >> np.uint64(shift)
            value *= np.uint64(multiplier)
        value ^= value >> np.uint64(_SHIFTS[-1])
    return value
