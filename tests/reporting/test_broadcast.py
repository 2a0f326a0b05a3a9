import pytest

from syncguard.report import Report
from syncguard.reporting import Broadcast
from syncguard.verdict import Verdict
from tests.reports import a_pass, a_report


class Recorder:
    def __init__(self, fails_at: str = "") -> None:
        self.heard: list[str] = []
        self._fails_at = fails_at

    def step(self, text: str, done: int, total: int) -> None:
        self._hear(f"step {text} {done}/{total}")

    def verdict(self, verdict: Verdict) -> None:
        self._hear(f"verdict {verdict.condition}")

    def finished(self, report: Report) -> None:
        self._hear(f"finished {report.status}")

    def _hear(self, event: str) -> None:
        self.heard.append(event)
        if event.startswith(self._fails_at or "never"):
            raise OSError(f"no room for {event}")


EVENTS = ["step sync 1/3", "verdict C2", "finished pass"]


def run(told: Broadcast) -> None:
    told.step("sync", 1, 3)
    told.verdict(a_pass("C2"))
    told.finished(a_report())


def test_every_listener_hears_every_event_in_order() -> None:
    one, other = Recorder(), Recorder()
    run(Broadcast([one, other]))
    assert one.heard == other.heard == EVENTS


@pytest.mark.parametrize("at", range(3))
def test_a_listener_that_fails_costs_the_others_nothing_and_is_told_of_at_the_end(at: int) -> None:
    broken, healthy = Recorder(EVENTS[at]), Recorder()
    with pytest.raises(OSError, match=f"no room for {EVENTS[at]}"):
        run(Broadcast([broken, healthy]))
    assert healthy.heard == EVENTS
    assert broken.heard == EVENTS[: at + 1]


def test_the_report_is_told_once() -> None:
    listener = Recorder()
    told = Broadcast([listener])
    told.finished(a_report())
    told.finished(a_report())
    assert listener.heard == EVENTS[-1:]


def test_an_interruption_is_not_swallowed() -> None:
    class Interrupting(Recorder):
        def step(self, text: str, done: int, total: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Broadcast([Interrupting()]).step("sync", 0, 1)
