"""A limit on how long a piece of work may take."""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

__all__ = ["TimeLimitExceeded", "time_limit"]

_AT_ONCE: Final = 1e-6  # a timer of 0 s would be none


class TimeLimitExceeded(BaseException):
    """The work took longer than it was allowed to.

    Like `KeyboardInterrupt` it is no `Exception`: work that handles its own errors must not take
    the interruption for one of them and go on, without a limit.
    """


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the body after some time.

    Works in the main thread of a process on Unix, by an alarm; in other threads there is no safe
    way to interrupt, and the body runs to its end. Of nested limits the one that ends first
    counts, also if the outer one is another user's alarm.

    Args:
        seconds: The limit; 0 or less, or infinity, means none.

    Raises:
        TimeLimitExceeded: In the body, when the time is over.
    """
    main = threading.current_thread() is threading.main_thread()
    if not 0 < seconds < math.inf or not main or not hasattr(signal, "setitimer"):
        yield
        return
    outer, interval = signal.getitimer(signal.ITIMER_REAL)
    if 0 < outer <= seconds:
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TimeLimitExceeded(f"no answer within {seconds:g} s")

    started = time.monotonic()
    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # it may ring until here
    finally:
        # None stands for a handler that was not set from Python, and cannot be set again.
        signal.signal(signal.SIGALRM, signal.SIG_DFL if previous is None else previous)
        if outer:
            left = outer - (time.monotonic() - started)
            signal.setitimer(signal.ITIMER_REAL, max(left, _AT_ONCE), interval)
