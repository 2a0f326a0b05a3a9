"""Ends the threads of OpenMP before a fork: a child would wait for them for ever.

A child has only the thread that forked, while libgomp in it believes that its pool is still there.
Setting one thread in the child is no remedy: vLLM replaces `torch.set_num_threads` in a process
that it has run in.
"""

import contextlib
import ctypes
from pathlib import Path
from typing import Final

__all__ = ["end_threads"]

_MAPS: Final = Path("/proc/self/maps")
_HARD: Final = 2  # omp_pause_hard


def end_threads() -> None:
    """Make every libgomp of this process give up its idle threads; it starts new ones at need."""
    for library in _loaded():
        with contextlib.suppress(OSError, AttributeError):  # not before GCC 9
            ctypes.CDLL(library).omp_pause_resource_all(_HARD)


def _loaded() -> set[str]:
    """Paths of the OpenMP libraries of GCC in this process; none where nothing tells."""
    with contextlib.suppress(OSError):
        lines = _MAPS.read_text("utf-8").splitlines()
        return {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line}
    return set()
