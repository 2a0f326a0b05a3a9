"""numba is optional, imported late, and safe in processes that fork."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from syncguard.grids import canary, dequantize, quantize


def run(script: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


WITHOUT_NUMBA = """
import sys
import syncguard.grids as grids
assert "numba" not in sys.modules, "importing syncguard.grids imports numba"
assert "llvmlite" not in sys.modules
sys.modules["numba"] = None  # an import of it now raises ImportError
weight = grids.canary()[::16]
elements, scales = grids.quantize(weight)
assert grids.quantize_and_compare(weight, elements, scales) == (0, 0)
grids.dequantize(elements, scales)
try:
    grids.quantize(weight, backend="numba")
except ValueError as error:
    print(error)
"""


def test_without_numba_torch_serves_and_a_request_for_numba_is_refused() -> None:
    message = run(WITHOUT_NUMBA)
    assert "backend 'numba' cannot be imported" in message
    assert "pip install 'syncguard[fast]'" in message


AFTER_FORK = """
import os, torch
import syncguard.grids as grids
torch.set_num_threads(2)
weight = torch.ones(1 << 14, 1024, dtype=torch.bfloat16)
weight.float().sum()  # torch's own threads are up before the fork
elements, scales = grids.quantize(weight, backend="numba")
child = os.fork()
if child == 0:
    again = grids.quantize(weight, backend="numba", out=(elements, scales))
    values = grids.dequantize(elements, scales, backend="numba")
    same = grids.quantize_and_compare(weight, elements, scales, backend="numba") == (0, 0)
    os._exit(0 if same and values[-1, -1] == 1 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_threads_work_in_a_forked_process() -> None:
    pytest.importorskip("numba")
    run(AFTER_FORK)


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from syncguard.grids import _numba_kernels

    asked: list[bool] = []

    def njit(*, nogil: bool, cache: bool = False) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available for file")
        return lambda function: function

    monkeypatch.setattr(_numba_kernels, "njit", njit)

    def kernel() -> int:
        return 3

    assert _numba_kernels._compile(kernel)() == 3
    assert asked == [True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("offset", [0, 32, 64])
def test_results_that_go_past_the_caches_are_the_same(
    dtype: torch.dtype, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = pytest.importorskip("syncguard.grids._numba_backend")
    elements, scales = quantize(canary())
    expected = dequantize(elements, scales, dtype, backend="torch")
    held = torch.empty(expected.numel() + 64, dtype=dtype)
    start = -held.data_ptr() % 64 // held.itemsize + offset // held.itemsize
    out = held[start : start + expected.numel()].view(expected.shape)
    monkeypatch.setattr(backend, "_STREAMED_BYTES", 0)
    asked: list[object] = []
    kernel = backend._numba_kernels.dequantize

    def told(*arguments: object, stream: object) -> object:
        asked.append(stream)
        return kernel(*arguments, stream)

    monkeypatch.setattr(backend._numba_kernels, "dequantize", told)
    dequantize(elements, scales, dtype, backend="numba", out=out)
    assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))
    assert asked == [True if offset != 32 else None]  # half a cache line cannot be streamed
