"""How processes end, what they said last, and that they die with their parent."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Final

__all__ = ["die_with_parent", "end_group_with_me", "ended", "last_words"]

_PR_SET_PDEATHSIG: Final = 1
_SHOWN: Final = 5
_DESCRIPTORS: Final = 1024
_TICK_S: Final = 0.5


def die_with_parent() -> None:
    """Let this process be killed when its parent ends, however that ends; Linux only.

    A parent that is gone already is not noticed: whoever may be so late compares `os.getppid`.
    """
    with contextlib.suppress(AttributeError, OSError):  # where there is such a thing
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_group_with_me() -> None:
    """Let this process's group be killed when this process ends, however it ends.

    What it has started would outlive it if it is killed. A process of the group waits for that,
    and does nothing else; this one must lead the group.
    """
    leader = os.getpid()
    if os.getpgid(0) != leader or os.fork():
        return
    try:
        os.closerange(3, _DESCRIPTORS)  # else whoever waits for a pipe to close waits for this one
        while os.getppid() == leader:
            time.sleep(_TICK_S)
        os.killpg(leader, signal.SIGKILL)  # and with it this process
    finally:
        os._exit(1)


def ended(code: int) -> str:
    """How a process ended, in words.

    Args:
        code: Its exit code; negative for a signal, as `subprocess.Popen` and `os` tell it.
    """
    if code >= 0:
        return f"its process ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process was killed by signal {-code}"


def last_words(log: Path) -> str:
    """The last lines that a process has written to a file, joined; empty if there are none."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        return " | ".join([line.strip() for line in lines if line.strip()][-_SHOWN:])
    return ""
