"""Interrupts that are not lost.

Python raises KeyboardInterrupt wherever it happens to be; in a destructor or a callback of a
library the exception is printed and forgotten, and the user waits for nothing.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

__all__ = ["Interrupts"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what a scheduler or a time limit sends: both want to see what was found."""


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
        previous = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

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
