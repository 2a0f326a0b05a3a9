"""What a person at a terminal sees: progress while it works, then the report."""

import os
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as ElapsedColumn

from syncguard.report import Report
from syncguard.reporting import numbers
from syncguard.reporting.text import render
from syncguard.verdict import Verdict

__all__ = ["Terminal", "standard_console"]


class Terminal:
    """Shows steps on one console as they come, and the report on another when it is there.

    A console that is no terminal gets one line a step instead of a bar.

    Args:
        out: Where the report goes.
        progress: Where progress goes.
        strict: How the exit code is found.
    """

    def __init__(self, out: Console, progress: Console, strict: bool = False) -> None:
        self._out = out
        self._progress = progress
        self._strict = strict
        self._bar: Progress | None = None
        self._begun = time.monotonic()

    def step(self, text: str, done: int, total: int) -> None:
        """Show what is done now."""
        if self._progress.is_terminal:
            bar = self._bar = self._bar or self._started()
            bar.update(bar.task_ids[0], description=text, completed=done, total=total or None)
            return
        count = f"[{min(done + 1, total)}/{total}] " if total else ""
        elapsed = numbers.seconds(time.monotonic() - self._begun)
        self._progress.print(f"{count}{text} ({elapsed})", markup=False, highlight=False)

    def verdict(self, verdict: Verdict) -> None:
        """Nothing: the report shows them all."""

    def finished(self, report: Report) -> None:
        """Print the report."""
        self.close()
        self._out.print(render(report, self._strict), highlight=False)

    def close(self) -> None:
        """Take the progress bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _started(self) -> Progress:
        # Plain characters: the spinner must not depend on the terminal's encoding.
        bar = Progress(
            SpinnerColumn("line"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            ElapsedColumn(),
            console=self._progress,
            transient=True,
        )
        bar.add_task("", total=None)
        bar.start()
        return bar


class _PatientConsole(Console):
    """A console whose reader may leave: ``| head`` must not change an exit code."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def standard_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr, which honours NO_COLOR, COLUMNS and a closed pipe."""
    return _PatientConsole(stderr=stderr, emoji=False, markup=False, highlight=False)
