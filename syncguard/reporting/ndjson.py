"""Verdicts as JSON lines, as they come."""

import json
from typing import TextIO

from syncguard.encoding import verdict_to_json
from syncguard.report import Report
from syncguard.verdict import Verdict

__all__ = ["Ndjson", "verdict_line"]


class Ndjson:
    """Writes one verdict a line, and flushes: what stands there survives a crash."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def step(self, text: str, done: int, total: int) -> None:
        """Nothing: steps are no verdicts."""

    def verdict(self, verdict: Verdict) -> None:
        """Write the verdict."""
        self._out.write(verdict_line(verdict))
        self._out.flush()

    def finished(self, report: Report) -> None:
        """Nothing: every verdict is written already."""


def verdict_line(verdict: Verdict) -> str:
    """One line of JSON, an object of ``$defs/verdict`` in the report's schema."""
    return json.dumps(verdict_to_json(verdict), allow_nan=False) + "\n"
