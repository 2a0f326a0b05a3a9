"""What the start of any engine needs: few files left behind, no collection among its objects."""

import contextlib
import gc
import tempfile
from collections.abc import Iterator

__all__ = ["quiet_collector", "temporary_files_in"]


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
