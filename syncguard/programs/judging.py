"""Judges one sync of a program, which is open over several operations."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from syncguard.checks import CHECKS, Check
from syncguard.observations import GraphReads, Poisoned, SyncRecord, WeightPrint
from syncguard.observing import SyncContext, View
from syncguard.protocols import Engine, Learner
from syncguard.runner import run_checks
from syncguard.verdict import Status, Verdict

__all__ = ["Judge", "JudgedSync"]


@dataclass(frozen=True, slots=True)
class JudgedSync:
    """One sync of a program.

    Attributes:
        number: Number of the sync, from 1.
        wrongs: What was illegal about it; empty if it was legal.
        verdicts: What the checks say.
    """

    number: int
    wrongs: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = field(default=(), repr=False)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(v.check for v in self.verdicts if v.status is Status.FAIL)

    @property
    def silent(self) -> tuple[str, ...]:
        """Names of the checks that could not run although they apply."""
        return tuple(v.check for v in self.verdicts if v.status is Status.NOT_RUN and v.counts)

    @property
    def complaint(self) -> str:
        """How verdicts and legality contradict each other; empty if they agree."""
        if self.wrongs and not (self.failed or self.silent):
            return f"sync {self.number} was illegal ({self.wrongs[0]}), and every check passed"
        if not self.wrongs and (self.failed or self.silent):
            bad = [v for v in self.verdicts if v.check in {*self.failed, *self.silent}]
            first = bad[0]
            return (
                f"sync {self.number} was legal, and {first.check} gave {first.status.value}: "
                f"{first.message}"
            )
        return ""


class Judge:
    """Notes what checks need before a sync, and runs them after it.

    Args:
        learner: The learner.
        engine: The engine, able to serve.
        vocabulary: Number of tokens to draw prompts from.
        seed: Of prompts, sampling and probes.
        checks: The checks to run; by default all but references.
    """

    def __init__(
        self,
        learner: Learner,
        engine: Engine,
        *,
        vocabulary: int,
        seed: int = 0,
        checks: Sequence[Check] | None = None,
    ) -> None:
        self._learner = learner
        self._engine = engine
        self._vocabulary = vocabulary
        self._seed = seed
        self._checks = (
            [check for check in CHECKS.values() if not check.reference]
            if checks is None
            else checks
        )
        self._noted: dict[str, Any] = {}
        self.look_again()

    def look_again(self) -> None:
        """Observe what a forward reads, before the first sync and whenever that may change."""
        self._reads: GraphReads = self._engine.graph_reads()

    def before(self, *, poison: int, same_weights: bool) -> None:
        """Observe the engine before a sync, and poison it if ``poison`` is not 0."""
        self._noted = {
            "storage_before": self._engine.storage(),
            "state_before": self._engine.state() if same_weights else {},
            "same_weights": same_weights,
            "poisoned": self._poisoned(poison) if poison else None,
        }

    def after(self, record: SyncRecord, wrongs: Sequence[str]) -> JudgedSync:
        """Run the checks on a sync that is over."""
        context = SyncContext(
            record=record,
            graph_reads=self._reads,
            vocabulary=self._vocabulary,
            seed=self._seed + record.number,
            **self._noted,
        )
        verdicts = run_checks(View(self._learner, self._engine, context), checks=self._checks)
        return JudgedSync(record.number, tuple(wrongs), tuple(verdicts))

    def _poisoned(self, pattern: int) -> Poisoned:
        nbytes = dict(self._engine.poison(pattern))
        held = self._engine.weight_prints()
        prints = {name: print_ for name, print_ in held.items() if isinstance(print_, WeightPrint)}
        return Poisoned(pattern, nbytes, prints)
