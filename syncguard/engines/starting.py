"""What the start of any engine needs: few files left, no collection of objects, cores for ranks."""

import contextlib
import gc
import getpass
import os
import tempfile
from collections.abc import Iterator
from typing import Final

from syncguard.errors import UsageError

__all__ = ["one_core_each", "quiet_collector", "temporary_files_in"]

_FOLDER: Final = "TMPDIR"
_COMPILED: Final = "TORCHINDUCTOR_CACHE_DIR"


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
    """Engines make files, as for their process group, and leave them behind: here, then.

    Those that their processes make too, which are told by the environment; but not what torch
    compiles, whose folder it keeps for all of this process.
    """
    kept = {name: os.environ.get(name) for name in (_FOLDER, _COMPILED)}
    before = tempfile.tempdir
    os.environ[_COMPILED] = kept[_COMPILED] or _usual_for_torch()
    os.environ[_FOLDER] = tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _usual_for_torch() -> str:
    """What torch takes by itself; to ask it would import what must not be imported yet."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for a number
        user = str(os.getuid())
    return os.path.join(tempfile.gettempdir(), f"torchinductor_{user}")


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
