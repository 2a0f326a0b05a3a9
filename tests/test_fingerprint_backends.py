"""Whatever the tensor, numba, numpy and torch give the numbers of the scalar specification."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard._fingerprint_reference import KEY, MULTIPLIER, ROTATIONS, key, mix, row_print
from syncguard._fingerprint_rows import segments
from syncguard.fingerprint import _backend

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from numpy.typing import NDArray


def _backends() -> list[ModuleType]:
    found = []
    for name in ("numpy", "torch", "numba"):
        try:
            found.append(importlib.import_module(f"syncguard._fingerprint_{name}"))
        except ImportError:  # numba is optional
            continue
    return found


BACKENDS = _backends()
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def specified(
    matrix: torch.Tensor, granule: int, position: int, part: int, signs: int
) -> NDArray[np.uint64]:
    """Print parts of rows with the scalar specification."""
    step, first = part * granule, position * granule
    sums = []
    for row in matrix:
        octets = row.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()
        if signs:
            numbers = octets.view(f"<u{signs // 8}").copy()
            octets = np.where(numbers == 1 << (signs - 1), 0, numbers).astype(numbers.dtype)
        held = octets.tobytes()
        starts = range(0, len(held), step)
        sums.append([row_print(held[i : i + step], granule, first + i) for i in starts])
    return np.array(sums, np.uint64)


@st.composite
def requests(draw: st.DrawFn) -> tuple[torch.Tensor, int, int, int, int]:
    """Draw a matrix of any strides and what else a backend is told."""
    width = draw(st.sampled_from([1, 2, 4, 8]))
    granule = draw(st.sampled_from([1, 2, 4, 8]))
    unit = max(width, granule)
    rows = draw(st.integers(1, 20))
    columns = draw(st.integers(1, 40)) * (unit // width)
    layout = draw(st.sampled_from(["rows", "slice", "columns", "steps", "expanded"]))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    shape = {
        "rows": (rows, columns),
        "slice": (rows + 2, columns + 5),
        "columns": (columns + 1, rows),
        "steps": (rows * 2, columns * 3),
        "expanded": (1, columns),
    }[layout]
    held = generator.integers(0, 256, (shape[0], shape[1] * width), dtype=np.uint8)
    numbers = held.view(f"<u{width}")
    # Every sign alone, and numbers near it.
    numbers[generator.random(shape) < 0.3] = 1 << (8 * width - 1)
    whole = torch.from_numpy(held).view(INTEGERS[width])
    take: dict[str, Callable[[], torch.Tensor]] = {
        "rows": lambda: whole,
        "slice": lambda: whole[1 : 1 + rows, 3 : 3 + columns],
        "columns": lambda: whole[1 : 1 + columns].T,
        "steps": lambda: whole[::2, ::3],
        "expanded": lambda: whole.expand(rows, columns),
    }
    signs = 8 * width if draw(st.booleans()) else 0
    count = columns * width // granule
    part = draw(st.integers(1, count + 1)) * (unit // granule)
    return take[layout](), granule, draw(st.integers(0, 2**40)), part, signs


@settings(deadline=None, max_examples=250)
@given(requests())
def test_every_backend_gives_the_specified_numbers(
    request: tuple[torch.Tensor, int, int, int, int],
) -> None:
    expected = specified(*request)
    for backend in BACKENDS:
        np.testing.assert_array_equal(
            backend.prints(*request), expected, err_msg=backend.__name__, strict=True
        )


@pytest.mark.parametrize("shape", [(3, 40_000), (40_000, 3), (300, 300), (1, 1 << 21)])
def test_long_rows_many_rows_and_threads(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(7)
    matrix = torch.from_numpy(generator.integers(0, 256, shape, dtype=np.uint8))
    numpy_prints = _backend("cpu").prints(matrix, 1, 5, shape[1], 0)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            for backend in BACKENDS:
                for held in (matrix, matrix.T.contiguous().T):
                    np.testing.assert_array_equal(
                        backend.prints(held, 1, 5, shape[1], 0), numpy_prints
                    )
                parts = backend.prints(matrix, 1, 5, 1000, 0)
                np.testing.assert_array_equal(parts.sum(axis=1, keepdims=True), numpy_prints)
    finally:
        torch.set_num_threads(threads)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 50))
def test_segments_cover_a_row_once_and_stay_within_their_parts(
    count: int, part: int, limit: int
) -> None:
    owners = np.full(count, -1)
    for start, size, parts, first in segments(count, part, limit):
        assert size * parts <= limit
        for number in range(parts):
            run = owners[start + number * size : start + (number + 1) * size]
            assert len(run) == size
            assert (run == -1).all()
            run[:] = first + number
    np.testing.assert_array_equal(owners, np.arange(count) // part)


@settings(deadline=None)
@given(st.integers(0, 2**50), st.integers(0, 40))
def test_keys_are_those_of_the_specification(first: int, count: int) -> None:
    expected = np.array([key(first + index) for index in range(count)], np.uint64)
    for backend in BACKENDS:
        if hasattr(backend, "keys"):
            np.testing.assert_array_equal(backend.keys(first, count), expected)


def test_the_mixer_is_a_bijection() -> None:
    # Each step is: xors of rotations, if the linear map has full rank; odd products; and xors
    # with a shift of itself.
    basis: list[int] = []
    for bit in range(64):
        value = 1 << bit
        for count in ROTATIONS:
            value ^= (1 << bit >> count | 1 << bit << (64 - count)) & (1 << 64) - 1
        for kept in basis:
            value = min(value, value ^ kept)
        assert value, f"bit {bit} is a sum of lower ones"
        basis.append(value)
    assert MULTIPLIER % 2 == KEY % 2 == 1


def test_numbers_stay_the_same_between_versions() -> None:
    # Learner and engine may run different versions of this package.
    assert [mix(0), mix(1), key(0)] == [0, 0x23085D6F7A569905, 0xA0CD4D7D70A692C9]
    assert row_print(bytes(range(64)), 8) == 0xA0BAD08F4D47002F


@pytest.mark.parametrize("top", [1 << 63, 1 << 56, 0xFF << 56, 1 << 48, 1 << 23, 1])
def test_two_changes_of_the_same_bits_do_not_cancel(top: int) -> None:
    # 2^16 positions make 2^31 pairs: a mixer in which such pairs cancel with a probability of
    # 2^-28 or more would show it. One of a single multiplication fails here.
    count = 1 << 16
    zeros, ones = (torch.full((count, 1), n, dtype=torch.uint64) for n in (0, top))
    matrix = torch.cat([zeros, ones]).view(torch.int64)
    positions = _backend("cpu").keys(0, count)
    held = matrix.numpy().view(np.uint64)[:, 0] + np.concatenate([positions, positions])
    # A row of one granule at position 0 has the argument granule + key(0): take that key off.
    arguments = (held - positions[0]).view(np.int64)[:, None]
    terms = _backend("cpu").prints(torch.from_numpy(arguments), 8, 0, 1, 0)[:, 0]
    changes = terms[count:] - terms[:count]
    assert np.unique(np.concatenate([changes, -changes])).size == 2 * count


WITHOUT_NUMBA = """
import sys
import torch
from syncguard.fingerprint import _backend, row_prints
assert "numba" not in sys.modules, "importing syncguard.fingerprint imports numba"
sys.modules["numba"] = None  # an import of it now raises ImportError
print(row_prints(torch.arange(60).reshape(3, 20)).tolist(), _backend("cpu").__name__)
"""

AFTER_FORK = """
import os, torch
from syncguard.fingerprint import row_prints
torch.set_num_threads(2)
matrix = torch.ones(1 << 13, 1024)
matrix.sum()  # torch's own threads are up before the fork
before = row_prints(matrix)
child = os.fork()
if child == 0:
    os._exit(0 if (row_prints(matrix) == before).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def run(script: str) -> str:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numpy_serves_where_numba_cannot_be_imported() -> None:
    from syncguard.fingerprint import row_prints

    expected = row_prints(torch.arange(60).reshape(3, 20)).tolist()
    assert run(WITHOUT_NUMBA).strip() == f"{expected} syncguard._fingerprint_numpy"


@pytest.mark.slow
def test_threads_work_in_a_forked_process() -> None:
    pytest.importorskip("numba")
    run(AFTER_FORK)


def test_other_devices_are_served_by_torch() -> None:
    assert _backend("cuda").__name__ == "syncguard._fingerprint_torch"


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from syncguard import _fingerprint_kernels

    asked: list[bool] = []

    def njit(*, nogil: bool, cache: bool = False) -> Any:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available for file")
        return lambda function: function

    monkeypatch.setattr(_fingerprint_kernels, "njit", njit)

    def kernel() -> int:
        return 3

    assert _fingerprint_kernels._compile(kernel)() == 3
    assert asked == [True, False]
