"""The fixture that syncs, judges and fails a test."""

import itertools
from collections.abc import Sequence
from typing import Any, Final

from syncguard.checks import CHECKS, Check
from syncguard.conditions import CORE_CONDITIONS
from syncguard.guard import Guard
from syncguard.plugin.environment import environment
from syncguard.plugin.options import Options
from syncguard.plugin.policy import enforce
from syncguard.plugin.recording import Recorder
from syncguard.plugin.sides import bucket_bytes, vocabulary
from syncguard.protocols import Engine, Learner
from syncguard.report import Report, SyncSummary
from syncguard.reporting import Broadcast
from syncguard.verdict import Verdict

__all__ = ["GuardedSyncs", "Session", "Sessions"]

_OBSERVABILITY: Final = "C7"
_serial: Final = itertools.count(1)


class Session:
    """The syncs of one pair of sides; all tests of a process that use the pair share it.

    So the numbers of its syncs, and the versions that the engine serves, never come twice.

    Args:
        learner: The learner.
        engine: The engine.
        options: Of the plugin.
        timeout_s: Limit for each check.
    """

    def __init__(
        self, learner: Learner, engine: Engine, options: Options, timeout_s: float = 300.0
    ) -> None:
        self.learner = learner
        self.engine = engine
        self.options = options
        self.bucket_bytes = bucket_bytes(learner)
        self._serial = next(_serial)
        self._environment = environment(learner, engine, options)
        # The guard reads its checks at every sync, and what to observe before only here.
        self._checks: list[Check] = list(_known())
        self._guard = Guard(
            learner,
            engine,
            Broadcast([]),
            checks=self._checks,
            timeout_s=timeout_s,
            vocabulary=vocabulary(learner),
            seed=options.seed,
        )

    def sync(
        self, conditions: Sequence[str] = (), **arguments: Any
    ) -> tuple[SyncSummary, list[Verdict]]:
        """Sync once and run the checks of some conditions, or of all.

        Args:
            conditions: Identifiers; empty for all.
            arguments: As for `syncguard.guard.Guard.sync`; ``bucket_bytes`` may be left out.
        """
        asked = [check for check in _known() if check.condition in conditions]
        self._checks[:] = asked or _known()
        summary, verdicts = self._guard.sync(**{"bucket_bytes": self.bucket_bytes, **arguments})
        wanted = (*conditions, _OBSERVABILITY)
        return summary, [v for v in verdicts if not conditions or v.condition in wanted]

    def record(
        self,
        recorder: Recorder,
        summary: SyncSummary,
        verdicts: Sequence[Verdict],
        conditions: Sequence[str] = (),
    ) -> None:
        """Keep verdicts on one sync, or some of them, for the report of the run."""
        name = f"{recorder.worker}/{self._serial}/{summary.number}"
        wanted = tuple(conditions) or tuple(condition.id for condition in CORE_CONDITIONS)
        report = Report(self._environment, (summary,), tuple(verdicts), conditions=wanted)
        recorder.judged(name, report)


class GuardedSyncs:
    """What ``syncguard_guard`` gives to one test.

    Args:
        session: The syncs of the two sides.
        recorder: Keeps verdicts for the report.
        conditions: Identifiers of the conditions that the test checks; empty for all.

    Attributes:
        used: Whether the test has synced.
    """

    def __init__(self, session: Session, recorder: Recorder, conditions: Sequence[str]) -> None:
        self._session = session
        self._recorder = recorder
        self.conditions = tuple(conditions)
        self.used = False

    @property
    def learner(self) -> Learner:
        """The learner whose weights are sent."""
        return self._session.learner

    @property
    def engine(self) -> Engine:
        """The engine that takes them."""
        return self._session.engine

    def sync(self, **arguments: Any) -> list[Verdict]:
        """Sync once, and fail the test if a condition is violated.

        A check that could not run fails it too, or warns, as ``--syncguard-not-run`` says. The
        verdicts go to the report of the run.

        Args:
            arguments: As for `syncguard.guard.Guard.sync`; ``bucket_bytes`` may be left out.

        Returns:
            A verdict for every check, and the one on observability.
        """
        __tracebackhide__ = True
        self.used = True
        summary, verdicts = self._session.sync(self.conditions, **arguments)
        self._session.record(self._recorder, summary, verdicts, self.conditions)
        enforce(
            verdicts,
            not_run=self._session.options.not_run,
            conditions=self.conditions,
            error=summary.error,
        )
        return verdicts

    def judge(self, **arguments: Any) -> list[Verdict]:
        """Sync once and return the verdicts, whatever they are; none goes to the report.

        For syncs that are wrong on purpose, such as one with a fault armed.
        """
        self.used = True
        return self._session.sync(self.conditions, **arguments)[1]


class Sessions:
    """One `Session` for each pair of sides that the tests of a process use."""

    def __init__(self) -> None:
        self._held: list[Session] = []

    def of(self, learner: Learner, engine: Engine, options: Options) -> Session:
        """The session of a pair, begun if there is none."""
        for session in self._held:
            if session.learner is learner and session.engine is engine:
                return session
        self._held.append(Session(learner, engine, options))
        return self._held[-1]


def _known() -> list[Check]:
    return [check for check in CHECKS.values() if not check.reference]
