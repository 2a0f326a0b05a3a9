"""Where an engine's sockets lie.

Systems take short paths only, and that of a temporary folder may be long: on a cluster, or within
other temporary folders.
"""

import contextlib
import functools
import tempfile
from typing import Final

from syncguard.errors import UsageError

__all__ = ["lasting_folder", "socket_folder"]

_LONGEST: Final = 107
"""Bytes of a socket's path: ``sun_path`` of unix(7), less the zero at its end."""

_NAME: Final = 37
"""A slash and a UUID, the longest name that engines give."""

_SHORT: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where the usual folder is too long


def socket_folder() -> "tempfile.TemporaryDirectory[str]":
    """A new folder, private to the user, in which a socket's path is short enough.

    It is in the usual place for temporary files if that will do.

    Raises:
        UsageError: There is no such place.
    """
    places = (tempfile.gettempdir(), *_SHORT)
    for place in places:
        with contextlib.suppress(OSError):
            made = tempfile.TemporaryDirectory(prefix="syncguard-", dir=place)
            if len(made.name.encode()) + _NAME <= _LONGEST:
                return made
            made.cleanup()
    raise UsageError(
        f"there is no folder for an engine's sockets, whose paths are at most {_LONGEST} bytes\n"
        f"  got: {', '.join(places)}\n"
        "  what to do: set TMPDIR to a folder with a short path that can be written"
    )


@functools.cache
def lasting_folder() -> "tempfile.TemporaryDirectory[str]":
    """The same for engines in this process, once; it goes when the process ends.

    Process groups of torch are the process's, and so is the file through which they are made: the
    next engine, of whatever kind, needs it when the first one is closed.

    Raises:
        UsageError: There is no place for it.
    """
    return socket_folder()
