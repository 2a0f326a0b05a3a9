"""What becomes of a process whose parent dies."""

import contextlib
import ctypes
import signal
from typing import Final

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Let this process be killed when its parent ends, however that ends; Linux only.

    A parent that is gone already is not noticed: whoever may be so late compares `os.getppid`.
    """
    with contextlib.suppress(AttributeError, OSError):  # where there is such a thing
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
