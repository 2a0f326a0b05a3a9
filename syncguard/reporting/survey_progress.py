"""How a survey gets on: a bar on a terminal, a line a cell elsewhere."""

from rich.console import Console
from rich.progress import TimeElapsedColumn

from syncguard.reporting.bar import Bar
from syncguard.survey.result import CellResult

__all__ = ["SurveyProgress"]


class SurveyProgress:
    """Hears of cells as they end.

    Args:
        console: Where to draw.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total = self._done = 0
        self._bar = Bar(console, "importing the engine", TimeElapsedColumn())
        self.waiting = self._bar.draw
        self.close = self._bar.close

    def planned(self, total: int) -> None:
        """So many cells are to be run."""
        self._total = total
        self._bar.count(total)

    def cell(self, result: CellResult) -> None:
        """One has ended."""
        self._done += 1
        told = f"{result.cell.name}: {result.status.value}"
        if self._bar.shown:
            self._bar.advance(told)
            return
        line = f"{self._done}/{self._total} {told}, {result.seconds:.0f} s"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
