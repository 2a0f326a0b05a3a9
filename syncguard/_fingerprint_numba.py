"""Drive the numba kernels: addresses, keys and threads.

Threads come from Python, since the kernels release the GIL, and not from numba: its thread layers
do not survive a fork, and engines fork.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from syncguard import _fingerprint_kernels
from syncguard._fingerprint_rows import Segment, byte_rows, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["keys", "prints"]

# Granules of a job, 2 MiB at 8 bytes: a tenth of a millisecond, so that a thread that has to wait
# for a core holds up little. One thread can nearly use up the memory of two cores, so a second
# pays late; with many cores, large tensors have jobs for all.
_JOB: Final = 1 << 18
_JOBS_PER_THREAD: Final = 8

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
    width = matrix.element_size()
    count = columns * width // granule
    out = np.zeros((rows, -(-count // part)), np.uint64)
    done = 0
    if matrix.stride(0) == 1 < matrix.stride(1) and width <= granule and part >= count:
        done = rows // _LANES * _LANES
        _print_neighbours(matrix[:done], granule, position, signs, out[:done])
    for octets in byte_rows(matrix[done:]):
        _print_rows(octets, granule, position, part, signs, out[done : done + len(octets)])
        done += len(octets)
    return out


def keys(first: int, count: int) -> NDArray[np.uint64]:
    """Return the keys of `count` positions from `first` on."""
    if first + count <= _KEPT_KEYS:
        return _kept_keys()[first : first + count]
    made = np.empty(count, np.uint64)
    _fingerprint_kernels.fill_keys(first, made)
    return made


@functools.cache
def _kept_keys() -> NDArray[np.uint64]:
    made = np.empty(_KEPT_KEYS, np.uint64)
    _fingerprint_kernels.fill_keys(0, made)
    made.flags.writeable = False
    return made


def _print_rows(
    octets: torch.Tensor,
    granule: int,
    position: int,
    part: int,
    signs: int,
    out: NDArray[np.uint64],
) -> None:
    """Add the prints of contiguous rows, uint8 [rows, bytes], to `out` [rows, parts]."""
    rows, width = octets.shape
    address, stride = octets.data_ptr(), octets.stride(0)
    limit = _LONG_SEGMENT if rows < _FEW_ROWS else _SEGMENT
    jobs = [
        (row, min(row + step, rows), cut)
        for cut in segments(width // granule, part, limit)
        for step in (max(1, _JOB // (cut.size * cut.parts)),)
        for row in range(0, rows, step)
    ]

    def run(job: tuple[int, int, Segment]) -> NDArray[np.uint64]:
        first, last, cut = job
        own_keys = keys(position + cut.start, cut.size * cut.parts)
        sums = np.zeros((last - first, cut.parts), np.uint64)
        _fingerprint_kernels.add_prints(
            _KINDS[8 * granule],
            _KINDS[signs],
            address + first * stride + cut.start * granule,
            stride,
            own_keys.ctypes.data,
            cut.size,
            sums,
        )
        return sums

    # Jobs may share sums, so they are put together here and not where the kernels run.
    for (first, last, cut), sums in zip(jobs, _each(run, jobs), strict=True):
        out[first:last, cut.part : cut.part + cut.parts] += sums


def _print_neighbours(
    matrix: torch.Tensor, granule: int, position: int, signs: int, out: NDArray[np.uint64]
) -> None:
    """Add the prints of a matrix whose columns are contiguous to `out` [rows, 1]."""
    rows, columns = matrix.shape
    width = matrix.element_size()
    count = columns * width // granule
    own_keys = keys(position, count)
    step = max(1, _JOB // (count * _NEIGHBOURS)) * _NEIGHBOURS

    def run(first: int) -> None:
        _fingerprint_kernels.add_neighbour_prints(
            _KINDS[8 * granule],
            _KINDS[8 * width],
            _KINDS[signs],
            matrix.data_ptr() + first * width,
            matrix.stride(1) * width,
            own_keys.ctypes.data,
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
