"""Fingerprints on numpy, for CPUs without numba."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import numpy as np

from syncguard._fingerprint_reference import KEY, MULTIPLIER, ROTATIONS, SHIFT
from syncguard._fingerprint_rows import byte_rows, segments

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

__all__ = ["keys", "prints"]

# Granules mixed at once: larger temporaries than a few MiB leave the cache and return to the
# system after each use, which then faults their pages in again.
_CHUNK: Final = 1 << 17


def prints(
    matrix: torch.Tensor, granule: int, position: int, part: int, signs: int
) -> NDArray[np.uint64]:
    """Print the parts of rows.

    Args:
        matrix: [rows, columns], not empty, of any strides.
        granule: Bytes of a granule.
        position: Of a row's first granule.
        part: Granules of a part.
        signs: Bits of an element if -0 counts as 0, else 0.

    Returns:
        uint64 [rows, parts], a row's last part maybe shorter.
    """
    pieces = [
        _prints(octets.numpy(), granule, position, part, signs) for octets in byte_rows(matrix)
    ]
    return np.concatenate(pieces)


@functools.lru_cache(maxsize=8)
def keys(first: int, count: int) -> NDArray[np.uint64]:
    """Return the keys of `count` positions from `first` on."""
    made = _mixed(np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(KEY))
    made.flags.writeable = False
    return made


def _prints(
    octets: NDArray[np.uint8], granule: int, position: int, part: int, signs: int
) -> NDArray[np.uint64]:
    rows, count = octets.shape[0], octets.shape[1] // granule
    out = np.zeros((rows, -(-count // part)), np.uint64)
    for start, size, parts, column in segments(count, part, _CHUNK):
        total = size * parts
        own_keys = keys(position + start, total)
        step = max(1, _CHUNK // total)
        for row in range(0, rows, step):
            chunk = octets[row : row + step, start * granule : (start + total) * granule]
            if signs:
                chunk = _without_negative_zero(chunk, signs)
            terms = _mixed(chunk.view(f"<u{granule}").astype(np.uint64) + own_keys)
            sums = terms.reshape(-1, parts, size).sum(axis=2, dtype=np.uint64)
            out[row : row + step, column : column + parts] += sums
    return out


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    first, second = (value >> np.uint64(n) | value << np.uint64(64 - n) for n in ROTATIONS)
    value = value ^ first ^ second
    for _ in range(2):
        value *= np.uint64(MULTIPLIER)
        value ^= value >> np.uint64(SHIFT)
    return value


def _without_negative_zero(octets: NDArray[np.uint8], signs: int) -> NDArray[np.uint8]:
    elements = octets.view(f"<u{signs // 8}").copy()
    elements[elements == 1 << (signs - 1)] = 0
    return elements.view(np.uint8)
