"""The events of a run."""

from typing import Protocol

from syncguard.report import Report
from syncguard.verdict import Verdict

__all__ = ["Listener"]


class Listener(Protocol):
    """Hears what happens in a run: any number of steps and verdicts, then the report, once."""

    def step(self, text: str, done: int, total: int) -> None:
        """A step of the work begins.

        Args:
            text: What is done now, such as "starting the engine".
            done: Steps that are behind us.
            total: Steps in all; 0 if that is not known.
        """

    def verdict(self, verdict: Verdict) -> None:
        """A check has answered."""

    def finished(self, report: Report) -> None:
        """The run is over; an interrupted one says so in its report."""
