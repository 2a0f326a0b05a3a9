"""A progress bar for what runs in forked processes."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

__all__ = ["Bar"]


class Bar:
    """Counts on a terminal; says nothing on a console that is none.

    It is drawn when it is told to: a thread would be forked away from under its locks.

    Args:
        console: Where it is drawn.
        first: What it says before anything is known.
        time: Its last column.
    """

    def __init__(self, console: Console, first: str, time: ProgressColumn) -> None:
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                time,
                console=console,
                auto_refresh=False,
                transient=True,
            )
            self._progress.add_task(first, total=None)
            self._progress.start()
            self.draw()

    @property
    def shown(self) -> bool:
        """Whether there is one."""
        return self._progress is not None

    def count(self, total: int, description: str | None = None) -> None:
        """So many things are to be done."""
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, total=total, description=description)

    def advance(self, description: str) -> None:
        """One of them is done."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], advance=1, description=description)

    def draw(self) -> None:
        """Draw it."""
        if self._progress is not None:
            self._progress.refresh()

    def close(self) -> None:
        """Take it away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
