"""What tests find, on its way from where they run to the report.

A worker keeps what a test found, gives it to the test's own report as JSON text, and forgets it. So
it reaches the controller the way the outcome of the test does, and a worker that dies takes only
its last test with it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import pytest

from syncguard.report import Report
from syncguard.verdict import Verdict, worst

__all__ = ["Recorder", "Share", "Trial"]

_MARK: Final = "syncguard."
"""How the names of all our properties begin."""

_FOUND: Final = pytest.StashKey[tuple[list[Verdict], list["Trial"]]]()


@dataclass(frozen=True, slots=True)
class Trial:
    """One fault that a test armed.

    Attributes:
        fault: Its name.
        site: Where.
        fired: How often it changed something.
        claimed_by: Checks that say they see it.
        detected_by: Checks that found it.
    """

    fault: str
    site: str
    fired: int
    claimed_by: tuple[str, ...]
    detected_by: tuple[str, ...]

    @property
    def survived(self) -> bool:
        """Whether a check claims it, and none that does has seen it."""
        return bool(self.claimed_by) and not set(self.claimed_by) & set(self.detected_by)


@dataclass(frozen=True, slots=True)
class Share:
    """What one phase of one test found.

    Attributes:
        judged: Name of a sync, unique in the run, and a report with this sync and verdicts on it.
        trials: Faults that were armed.
    """

    judged: tuple[tuple[str, Report], ...]
    trials: tuple[Trial, ...]

    @classmethod
    def from_json(cls, text: str) -> "Share":
        """Read what `Recorder.drained` gave."""
        value = json.loads(text)
        return cls(
            tuple((name, Report.from_json(report)) for name, report in value["judged"]),
            tuple(
                Trial(
                    trial["fault"],
                    trial["site"],
                    trial["fired"],
                    tuple(trial["claimed_by"]),
                    tuple(trial["detected_by"]),
                )
                for trial in value["trials"]
            ),
        )


class Recorder:
    """Keeps what the tests of this process found until their reports take it."""

    def __init__(self) -> None:
        self.worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._judged: list[tuple[str, Report]] = []
        self._trials: list[Trial] = []

    def judged(self, name: str, report: Report) -> None:
        """Keep the verdicts on one sync, or some of them.

        Args:
            name: Of the sync, the same whenever it comes and no other sync's.
            report: With this sync and verdicts on it.
        """
        self._judged.append((name, report))

    def tried(self, trial: Trial) -> None:
        """Keep what became of a fault."""
        self._trials.append(trial)

    def describe(self, item: pytest.Item) -> None:
        """Put what a test has found until now among its properties, which JUnit XML shows."""
        verdicts, trials = item.stash.setdefault(_FOUND, ([], []))
        verdicts += [verdict for _, report in self._judged for verdict in report.verdicts]
        trials += self._trials
        others = [pair for pair in item.user_properties if not pair[0].startswith(_MARK)]
        item.user_properties[:] = [*others, *_properties(verdicts, trials)]

    def drained(self) -> str:
        """Everything that was kept, as JSON text; empty if there is nothing."""
        if not self._judged and not self._trials:
            return ""
        value = {
            "judged": [(name, report.to_json()) for name, report in self._judged],
            "trials": [asdict(trial) for trial in self._trials],
        }
        self._judged, self._trials = [], []
        return json.dumps(value)


def _properties(verdicts: Sequence[Verdict], trials: Sequence[Trial]) -> Iterator[tuple[str, str]]:
    for condition in dict.fromkeys(verdict.condition for verdict in verdicts):
        mine = [verdict for verdict in verdicts if verdict.condition == condition]
        cost = sum(verdict.cost_s for verdict in mine)
        yield f"{_MARK}{condition}.status", worst(mine).value
        yield f"{_MARK}{condition}.cost_s", f"{cost:.6f}"
    for trial in trials:
        yield f"{_MARK}fault", f"{trial.fault}@{trial.site}"
        yield f"{_MARK}fired", str(trial.fired)
        yield f"{_MARK}detected_by", " ".join(trial.detected_by) or "none"
