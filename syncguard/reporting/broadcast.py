"""One event stream to many listeners."""

from collections.abc import Callable, Sequence

from syncguard.report import Report
from syncguard.reporting.events import Listener
from syncguard.verdict import Verdict

__all__ = ["Broadcast"]


class Broadcast:
    """Tells every listener; one that fails is told no more, and harms neither run nor others.

    Its first error is kept, and raised when all others have heard of the end: a full disk must not
    cost the verdicts that the terminal can still show.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = list(listeners)
        self._errors: list[Exception] = []
        self._over = False

    def step(self, text: str, done: int, total: int) -> None:
        """See `Listener`."""
        self._tell(lambda listener: listener.step(text, done, total))

    def verdict(self, verdict: Verdict) -> None:
        """See `Listener`."""
        self._tell(lambda listener: listener.verdict(verdict))

    def finished(self, report: Report) -> None:
        """See `Listener`; a second report of the same run is not passed on.

        Raises:
            Exception: The first error of any listener.
        """
        if self._over:
            return
        self._over = True
        self._tell(lambda listener: listener.finished(report))
        if self._errors:
            raise self._errors[0]

    def _tell(self, event: Callable[[Listener], None]) -> None:
        for listener in tuple(self._listeners):
            try:
                event(listener)
            except Exception as error:  # noqa: BLE001 - kept, and raised by finished
                self._errors.append(error)
                self._listeners.remove(listener)
