"""A bar with the time left and the survivors found so far, while a campaign runs."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from syncguard.campaign.cell import Cell, Outcome
from syncguard.campaign.healthy import HealthyRun

__all__ = ["CampaignProgress"]


class CampaignProgress:
    """Shows how a campaign gets on; says nothing on a console that is no terminal.

    It is drawn on the campaign's own turns: a thread would be forked away from under its locks.

    Args:
        console: Where the bar is drawn.
    """

    def __init__(self, console: Console) -> None:
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                console=console,
                auto_refresh=False,
                transient=True,
            )
            self._bar.add_task("finding sites", total=None)
            self._bar.start()
            self.waiting()
        self._survivors = self._alarms = self._defects = 0

    def planned(self, total: int) -> None:
        """See `syncguard.campaign.CampaignListener`."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], total=total, description=self._told())

    def finished(self, item: Cell | HealthyRun, *, resumed: bool) -> None:
        """See `syncguard.campaign.CampaignListener`."""
        if isinstance(item, HealthyRun):
            self._alarms += item.alarmed
        elif item.outcome in (Outcome.SURVIVED, Outcome.DELAYED):
            self._survivors += 1
        elif item.outcome in (Outcome.ERROR, Outcome.NOT_FIRED):
            self._defects += 1
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, description=self._told())

    def waiting(self) -> None:
        """Draw the bar."""
        if self._bar is not None:
            self._bar.refresh()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _told(self) -> str:
        told = f"survivors {self._survivors}"
        if self._alarms:
            told += f", false alarms {self._alarms}"
        if self._defects:
            told += f", defects {self._defects}"
        return told
