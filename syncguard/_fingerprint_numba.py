"""Drive the numba kernels: addresses, keys and threads.

Threads come from Python, since the kernels release the GIL, and not from numba: its thread layers
do not survive a fork, and engines fork.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from syncguard import _fingerprint_kernels
from syncguard._fingerprint_rows import Segment, byte_rows, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["keys", "prints"]

# Granules of a job, 4 MiB at 8 bytes: a fifth of a millisecond, so that a thread that has to wait
# for a core holds up little. One thread can nearly use up the memory of two cores, so a second
# pays late; with many cores, large tensors have jobs for all.
_JOB: Final = 1 << 19
_JOBS_PER_THREAD: Final = 4

# Granules of a row worked on at once: their keys, 64 KiB, stay in cache while row after row uses
# them. Shorter pieces of rows would make the memory jump and halve the speed. A few rows use keys
# too seldom to pay for as many turns.
_SEGMENT: Final = 1 << 13
_LONG_SEGMENT: Final = 1 << 15
_FEW_ROWS: Final = 8

# Rows of a matrix whose columns are contiguous are worked on by eights, best by thousands.
_LANES: Final = 8
_NEIGHBOURS: Final = 1 << 11

# The keys of rows of up to 512 KiB at 8 bytes are made once.
_KEPT_KEYS: Final = 1 << 16

_KINDS: Final[dict[int, Any]] = {
    0: None,
    8: np.uint8(0),
    16: np.uint16(0),
    32: np.uint32(0),
    64: np.uint64(0),
}


def prints(
    matrix: torch.Tensor, granule: int, position: int, part: int, signs: int
) -> NDArray[np.uint64]:
    """Print the parts of rows; see `_fingerprint_numpy.prints`."""
    rows, columns = matrix.shape
    down, along = matrix.stride()
    width = matrix.itemsize
    count = columns * width // granule
    request = _Request(count, granule, position, part, signs)
    out = np.zeros((rows, -(-count // part)), np.uint64)
    if along == 1:
        _print_rows(matrix.data_ptr(), down * width, request, out)
        return out
    done = 0
    if down == 1 < along and width <= granule and part >= count:
        done = rows // _LANES * _LANES
        _print_neighbours(matrix[:done], request, out[:done])
    for octets in byte_rows(matrix[done:]):
        last = done + octets.shape[0]
        _print_rows(octets.data_ptr(), octets.stride(0), request, out[done:last])
        done = last
    return out


def keys(first: int, count: int) -> NDArray[np.uint64]:
    """Return the keys of `count` positions from `first` on."""
    if first + count <= _KEPT_KEYS:
        return _kept_keys()[0][first : first + count]
    made = np.empty(count, np.uint64)
    _fingerprint_kernels.fill_keys(first, made)
    return made


@functools.cache
def _kept_keys() -> tuple[NDArray[np.uint64], int]:
    """Return the keys from position 0 on, and their address."""
    made = np.empty(_KEPT_KEYS, np.uint64)
    _fingerprint_kernels.fill_keys(0, made)
    made.flags.writeable = False
    return made, made.ctypes.data


class _Request(NamedTuple):
    """How many granules a row has, and the arguments of `prints` that are not the matrix."""

    granules: int
    granule: int
    position: int
    part: int
    signs: int


def _print_rows(address: int, stride: int, request: _Request, out: NDArray[np.uint64]) -> None:
    """Add the prints of contiguous rows to `out` [rows, parts], which is contiguous."""
    count, granule, position, part, signs = request
    rows = out.shape[0]
    kinds = _KINDS[8 * granule], _KINDS[signs]
    if count <= min(part, _SEGMENT) and rows * count <= _JOB and position + count <= _KEPT_KEYS:
        # Most tensors are small, and then what follows takes longer than the kernel.
        held = _kept_keys()[1] + 8 * position
        _fingerprint_kernels.add_prints(*kinds, address, stride, held, count, out)
        return
    jobs = [
        (row, min(row + step, rows), cut)
        for cut in segments(count, part, _LONG_SEGMENT if rows < _FEW_ROWS else _SEGMENT)
        for step in (max(1, _JOB // (cut.size * cut.parts)),)
        for row in range(0, rows, step)
    ]

    def run(job: tuple[int, int, Segment]) -> NDArray[np.uint64]:
        first, last, cut = job
        held = keys(position + cut.start, cut.size * cut.parts)
        sums = np.zeros((last - first, cut.parts), np.uint64)
        start = address + first * stride + cut.start * granule
        _fingerprint_kernels.add_prints(*kinds, start, stride, held.ctypes.data, cut.size, sums)
        return sums

    # Jobs may share sums, so they are put together here and not where the kernels run.
    for (first, last, cut), sums in zip(jobs, _each(run, jobs), strict=True):
        out[first:last, cut.part : cut.part + cut.parts] += sums


def _print_neighbours(matrix: torch.Tensor, request: _Request, out: NDArray[np.uint64]) -> None:
    """Add the prints of a matrix whose columns are contiguous to `out` [rows, 1]."""
    count, granule, position, _, signs = request
    rows, width = out.shape[0], matrix.itemsize
    held = keys(position, count)
    step = max(1, _JOB // (count * _NEIGHBOURS)) * _NEIGHBOURS

    def run(first: int) -> None:
        _fingerprint_kernels.add_neighbour_prints(
            _KINDS[8 * granule],
            _KINDS[8 * width],
            _KINDS[signs],
            matrix.data_ptr() + first * width,
            matrix.stride(1) * width,
            held.ctypes.data,
            count,
            out[first:].ctypes.data,
            min(step, rows - first),
        )

    for _ in _each(run, range(0, rows, step)):
        pass


def _each(run: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterable[Any]:
    """Run jobs, in threads if there are enough of them; yield their results in order."""
    threads = min(torch.get_num_threads(), len(jobs) // _JOBS_PER_THREAD)
    if threads <= 1:
        return map(run, jobs)
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, jobs))
