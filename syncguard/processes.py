"""How processes end, what they said last, and that they die with their parent."""

import contextlib
import ctypes
import signal
from pathlib import Path
from typing import Final

__all__ = ["die_with_parent", "ended", "last_words"]

_PR_SET_PDEATHSIG: Final = 1
_SHOWN: Final = 5


def die_with_parent() -> None:
    """Let this process be killed when its parent ends, however that ends; Linux only.

    A parent that is gone already is not noticed: whoever may be so late compares `os.getppid`.
    """
    with contextlib.suppress(AttributeError, OSError):  # where there is such a thing
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
