"""How a survey gets on: a bar on a terminal, a line a cell elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from syncguard.survey.result import CellResult

__all__ = ["SurveyProgress"]


class SurveyProgress:
    """Hears of cells as they end.

    It is drawn on the survey's own turns: a thread would be forked away from under its locks.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = 0
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                auto_refresh=False,
                transient=True,
            )
            self._bar.add_task("importing the engine", total=None)
            self._bar.start()
            self._bar.refresh()

    def planned(self, total: int) -> None:
        """So many cells are to be run."""
        self._total = total
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], total=total)

    def cell(self, result: CellResult) -> None:
        """One has ended."""
        self._done += 1
        told = f"{result.cell.name}: {result.status.value}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, description=told)
            return
        line = f"{self._done}/{self._total} {told}, {result.seconds:.0f} s"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def waiting(self) -> None:
        """Draw the bar."""
        if self._bar is not None:
            self._bar.refresh()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
