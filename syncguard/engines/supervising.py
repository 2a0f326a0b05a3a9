"""Runs a command, and ends all that it started as soon as whoever wanted it lets go.

A server has processes of its own, which outlive it if it is killed. This process stands between:
it waits for its input to close, which it does however its parent ends, and then ends the whole
session of the command, gently first: what is killed leaves shared memory behind. Its input is a
socket, through which it tells the session's number, for the case that it is killed itself.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from syncguard.processes import die_with_parent

__all__ = ["GENTLE_S", "supervise"]

GENTLE_S: Final = 10.0
"""How long a command has to end by itself."""

_TICK_S: Final = 0.2


def supervise(command: Sequence[str], released: int) -> int:
    """Run a command until it ends, or a socket is closed.

    Args:
        command: What to run; it gets a session of its own, and no input.
        released: Descriptor of the socket that is closed; the session's number is written to it.

    Returns:
        The command's exit code, negative for a signal.
    """
    child = subprocess.Popen(  # noqa: S603 - what our own caller gave
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    with contextlib.suppress(OSError):  # it may have been closed already
        os.write(released, f"{child.pid}\n".encode())
    while child.poll() is None and not select.select([released], [], [], _TICK_S)[0]:
        pass
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GENTLE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


if __name__ == "__main__":
    code = supervise(sys.argv[1:], sys.stdin.fileno())
    sys.exit(code if code >= 0 else 128 - code)
