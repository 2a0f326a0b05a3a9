"""A state machine that Hypothesis drives: any program of syncs, held against what is legal.

Run it on the stub with ``TestSyncs = SyncMachine.TestCase``, or on your own engine by a subclass
with another `SyncMachine.make_sides`. A failure shrinks to the shortest program that shows it.
"""

import time
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from syncguard.caselog import Case, CaseLog
from syncguard.programs import Op, ProgramRun, format_program
from syncguard.protocols import Engine, Learner
from syncguard.strategies import topologies
from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

__all__ = ["SyncMachine"]

_counts = st.integers(1, 9)
_seeds = st.integers(1, 99)


def _can(name: str) -> Any:
    return precondition(lambda self: self.run.can(name))


class SyncMachine(RuleBasedStateMachine):
    """Open, send, resend, drop, reorder, last, finish, fail, and what happens between syncs.

    Every legal sync must pass every check, every illegal one must fail at least one, nothing is
    served while it must not be, and answers change by syncs only.

    Attributes:
        shapes: What topologies are drawn.
        log: Where every case is written; none for nowhere.
    """

    shapes: ClassVar[st.SearchStrategy[Topology]] = topologies()
    log: ClassVar[CaseLog | None] = None

    run: ProgramRun

    def make_sides(self, topology: Topology, seed: int) -> tuple[Learner, Engine]:
        """Build the two sides; the engine must not hold the learner's weights yet."""
        return make_stub_learner(topology, seed=seed), make_stub_engine(topology, seed=seed)

    @initialize(data=st.data(), seed=st.integers(0, 9))
    def start(self, data: st.DataObject, seed: int) -> None:
        """Draw a topology and build both sides of it."""
        self.topology = data.draw(self.shapes, label="topology")
        self.seed = seed
        self.began = time.perf_counter()
        learner, engine = self.make_sides(self.topology, seed)
        self.run = ProgramRun(learner, engine, vocabulary=self.topology.vocab, seed=seed)
