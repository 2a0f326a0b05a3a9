"""Rows of any tensor as bytes, and the pieces in which they are worked on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Segment", "byte_rows", "copied", "matrices", "segments", "sign_bits"]

_COPIED_BYTES: Final = 1 << 22

_SIGNED_ZERO: Final = {
    torch.float8_e4m3fn: 8,
    torch.float8_e5m2: 8,
    torch.float16: 16,
    torch.bfloat16: 16,
    torch.complex32: 16,
    torch.float32: 32,
    torch.complex64: 32,
    torch.float64: 64,
    torch.complex128: 64,
}


def sign_bits(dtype: torch.dtype) -> int:
    """Return the width in bits of numbers that have a negative zero; 0 if a dtype has none.

    Raises:
        ValueError: Several numbers share a byte.
    """
    if dtype == torch.float4_e2m1fn_x2:
        raise ValueError(f"{dtype} has two zeros in half a byte: dequantize before printing values")
    return _SIGNED_ZERO.get(dtype, 0)


def matrices(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield all rows in order, as views of the tensor with two dimensions.

    Args:
        tensor: Of two or more dimensions, not empty.
    """
    if tensor.ndim == 2:
        yield tensor
        return
    try:
        yield tensor.view(-1, tensor.shape[-1])
    except RuntimeError:  # no single distance between rows
        for part in tensor:
            yield from matrices(part)


def byte_rows(matrix: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield all rows in order, as uint8 [rows, bytes] of which each row is contiguous.

    A view where the matrix is like this already, whatever the distance of its rows; else copies
    of some rows at a time.
    """
    if matrix.stride(1) == 1:
        yield matrix.view(torch.uint8)
        return
    step = max(1, _COPIED_BYTES // (matrix.shape[1] * matrix.element_size()))
    for row in range(0, matrix.shape[0], step):
        yield copied(matrix[row : row + step]).view(torch.uint8)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy whose bytes can be viewed.

    `Tensor.contiguous` leaves dimensions of size 1 at any stride, which a view then refuses.
    """
    return tensor.clone(memory_format=torch.contiguous_format)


class Segment(NamedTuple):
    """Neighbouring granules of a row: `parts` times `size` from `start` on.

    Their sums belong to the row's parts from `part` on.
    """

    start: int
    size: int
    parts: int
    part: int


def segments(count: int, part: int, limit: int) -> Iterator[Segment]:
    """Cut a row of `count` granules, whose parts have `part` granules each, the last maybe fewer.

    Yields:
        Segments of at most `limit` granules that cover the row.
    """
    whole = count // part if part <= limit else 0
    together = max(1, limit // part)
    for first in range(0, whole, together):
        yield Segment(first * part, part, min(together, whole - first), first)
    for start in range(whole * part, count, part):
        stop = min(start + part, count)
        for piece in range(start, stop, limit):
            yield Segment(piece, min(limit, stop - piece), 1, start // part)
