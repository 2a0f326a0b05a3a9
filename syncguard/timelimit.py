"""A limit on how long a piece of work may take."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["TimeLimitExceeded", "time_limit"]


class TimeLimitExceeded(Exception):
    """The work took longer than it was allowed to."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the body after some time.

    Works in the main thread of a process on Unix, by an alarm; in other threads there is no safe
    way to interrupt, and the body runs to its end. A limit inside another one shortens it.

    Args:
        seconds: The limit; 0 or less means none.

    Raises:
        TimeLimitExceeded: In the body, when the time is over.
    """
    main = threading.current_thread() is threading.main_thread()
    if seconds <= 0 or not main or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TimeLimitExceeded(f"no answer within {seconds:g} s")

    previous = signal.signal(signal.SIGALRM, ring)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, outer)
        signal.signal(signal.SIGALRM, previous)
