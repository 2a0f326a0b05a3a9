"""A bar with the time left and the survivors found so far, while a campaign runs."""

from rich.console import Console
from rich.progress import TimeRemainingColumn

from syncguard.campaign.cell import Cell, Outcome
from syncguard.campaign.healthy import HealthyRun
from syncguard.reporting.bar import Bar

__all__ = ["CampaignProgress"]


class CampaignProgress:
    """Shows how a campaign gets on; says nothing on a console that is no terminal.

    Args:
        console: Where the bar is drawn.
    """

    def __init__(self, console: Console) -> None:
        self._bar = Bar(console, "finding sites", TimeRemainingColumn(compact=True))
        self.waiting = self._bar.draw
        self.close = self._bar.close
        self._survivors = self._alarms = self._defects = 0

    def planned(self, total: int) -> None:
        """See `syncguard.campaign.CampaignListener`."""
        self._bar.count(total, self._told())

    def finished(self, item: Cell | HealthyRun, *, resumed: bool) -> None:
        """See `syncguard.campaign.CampaignListener`."""
        if isinstance(item, HealthyRun):
            self._alarms += item.alarmed
        elif item.outcome in (Outcome.SURVIVED, Outcome.DELAYED):
            self._survivors += 1
        elif item.outcome in (Outcome.ERROR, Outcome.NOT_FIRED):
            self._defects += 1
        self._bar.advance(self._told())

    def _told(self) -> str:
        told = f"survivors {self._survivors}"
        if self._alarms:
            told += f", false alarms {self._alarms}"
        if self._defects:
            told += f", defects {self._defects}"
        return told
