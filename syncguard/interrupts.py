"""Interrupts that are not lost.

Python raises KeyboardInterrupt wherever it happens to be; in a destructor or a callback of a
library the exception is printed and forgotten, and the user waits for nothing.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["Interrupts"]


class Interrupts:
    """Remembers an interrupt until somebody asks.

    Attributes:
        asked: Whether the user has interrupted.
    """

    def __init__(self) -> None:
        self.asked = False

    @contextlib.contextmanager
    def remembered(self) -> Iterator[None]:
        """Remember interrupts while the context is open; in the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def check(self) -> None:
        """Raise the interrupt that was lost on its way.

        Raises:
            KeyboardInterrupt: The user has interrupted.
        """
        if self.asked:
            raise KeyboardInterrupt

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt
