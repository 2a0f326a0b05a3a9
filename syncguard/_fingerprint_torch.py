"""Fingerprints in plain torch operations, for tensors on any device; nothing but sums leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from syncguard._fingerprint_reference import KEY, MULTIPLIER, ROTATIONS, SHIFT
from syncguard._fingerprint_rows import byte_rows, segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["prints"]

# Granules mixed at once: each of the few temporaries is 8 MiB.
_CHUNK: Final = 1 << 20

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def prints(
    matrix: torch.Tensor, granule: int, position: int, part: int, signs: int
) -> NDArray[np.uint64]:
    """Print the parts of rows; see `_fingerprint_numpy.prints`."""
    pieces = [_prints(octets, granule, position, part, signs) for octets in byte_rows(matrix)]
    return torch.cat(pieces).cpu().numpy().view(np.uint64)


def _prints(
    octets: torch.Tensor, granule: int, position: int, part: int, signs: int
) -> torch.Tensor:
    rows, count = octets.shape[0], octets.shape[1] // granule
    out = torch.zeros((rows, -(-count // part)), dtype=torch.int64, device=octets.device)
    for start, size, parts, column in segments(count, part, _CHUNK):
        total = size * parts
        positions = torch.arange(total, dtype=torch.int64, device=octets.device)
        keys = _mixed((positions + (position + start + 1)) * _signed(KEY))
        step = max(1, _CHUNK // total)
        for row in range(0, rows, step):
            chunk = octets[row : row + step, start * granule : (start + total) * granule]
            terms = _mixed(_numbers(chunk, granule, signs) + keys)
            out[row : row + step, column : column + parts] += terms.view(-1, parts, size).sum(2)
    return out


def _numbers(octets: torch.Tensor, granule: int, signs: int) -> torch.Tensor:
    """Return the granules as int64; a chunk may start at any address, so it is copied first."""
    octets = octets.clone(memory_format=torch.contiguous_format)
    if signs:
        elements = octets.view(_INTEGERS[signs // 8])
        sign = 1 << (signs - 1)
        elements.masked_fill_(elements == (sign if signs == 8 else -sign), 0)
    numbers = octets.view(_INTEGERS[granule]).to(torch.int64)
    return numbers if granule == 8 else numbers & ((1 << 8 * granule) - 1)


def _mixed(value: torch.Tensor) -> torch.Tensor:
    first, second = (_shifted(value, n) | value << (64 - n) for n in ROTATIONS)
    value = value ^ first ^ second
    for _ in range(2):
        value = value * _signed(MULTIPLIER)
        value = value ^ _shifted(value, SHIFT)
    return value


def _shifted(value: torch.Tensor, count: int) -> torch.Tensor:
    """Shift zeros in: torch has no unsigned numbers of 64 bits that shift."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
