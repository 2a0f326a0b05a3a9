"""What the start of any engine needs: few files left, no collection of objects, cores for ranks."""

import contextlib
import gc
import os
import tempfile
from collections.abc import Iterator

from syncguard.errors import UsageError

__all__ = ["one_core_each", "quiet_collector", "temporary_files_in"]


def one_core_each(ranks: int) -> str:
    """A core for each rank, as engines want to be told; by themselves they look for NUMA nodes.

    Raises:
        UsageError: There are fewer cores than ranks.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks:
        raise UsageError(
            f"{ranks} ranks need a core each, and this process may use {len(cores)}\n"
            "  what to do: run with fewer ranks, or on a larger machine"
        )
    return "|".join(str(core) for core in cores[:ranks])


@contextlib.contextmanager
def temporary_files_in(folder: str) -> Iterator[None]:
    """Engines make files, as for their process group, and leave them behind: here, then."""
    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Imports and loading make many lasting objects: collecting among them costs seconds."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
