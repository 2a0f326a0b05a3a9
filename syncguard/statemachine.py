"""A state machine that Hypothesis drives: any program of syncs, held against what is legal.

Run it on the stub with ``TestSyncs = SyncMachine.TestCase``, or on your own engine by a subclass
with another `SyncMachine.make_sides`. A failure shrinks to the shortest program that shows it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from syncguard.caselog import Case, CaseLog
from syncguard.checks import Check
from syncguard.programs import Op, ProgramRun, format_program
from syncguard.protocols import Learner
from syncguard.strategies import topologies
from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

__all__ = ["SyncMachine"]

_POISONS = (0, 0xA5, 0x5A)
_counts = st.integers(1, 9)
_seeds = st.integers(1, 99)
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def _when(name: str) -> Callable[[_Rule], _Rule]:
    return precondition(lambda self: self.running.can(name))


def _if_careless(name: str) -> Callable[[_Rule], _Rule]:
    return precondition(lambda self: self.running.can(name) and not self.careful)


class SyncMachine(RuleBasedStateMachine):
    """Open, send, resend, drop, reorder, last, finish, fail, and what happens between syncs.

    Every legal sync must pass every check, every illegal one must fail at least one, nothing is
    served while it must not be, and answers change by syncs only.

    Attributes:
        shapes: What topologies are drawn.
        checks: The checks to run after each sync; by default all but references.
        log: Where every case is written; none for nowhere.
    """

    shapes: ClassVar[st.SearchStrategy[Topology]] = topologies()
    checks: ClassVar[Sequence[Check] | None] = None
    log: ClassVar[CaseLog | None] = None

    running: ProgramRun

    def make_sides(self, topology: Topology, seed: int) -> tuple[Learner, Any]:
        """Build both sides; the engine must not hold the learner's weights yet."""
        return make_stub_learner(topology, seed=seed), make_stub_engine(topology, seed=seed)

    @initialize(data=st.data(), seed=st.integers(0, 9), careful=st.booleans())
    def start(self, data: st.DataObject, seed: int, careful: bool) -> None:
        """Draw a topology and build both sides of it; a careful program does nothing illegal."""
        self.began, self.careful = time.perf_counter(), careful
        self.topology, self.seed = data.draw(self.shapes), seed
        sides = self.make_sides(self.topology, seed)
        self.running = ProgramRun(
            *sides, vocabulary=self.topology.vocab, seed=seed, checks=self.checks
        )

    @_when("open")
    @rule(poison=st.sampled_from(_POISONS))
    def open(self, poison: int) -> None:
        """Open a sync, on a poisoned engine or not."""
        self._do("open", poison)

    @_when("open")
    @rule(poison=st.sampled_from(_POISONS), count=_counts)
    def sync(self, poison: int, count: int) -> None:
        """A whole sync, in buckets of so many weights."""
        self._do("open", poison)
        while self.running.can("send"):
            self._do("send", count)
        self._do("finish")

    @_when("send")
    @rule(count=_counts)
    def send(self, count: int) -> None:
        """Send the next weights as one bucket."""
        self._do("send", count)

    @_if_careless("resend")
    @rule(which=_counts)
    def resend(self, which: int) -> None:
        """Send a weight of this sync again, which is illegal."""
        self._do("resend", which)

    @_if_careless("drop")
    @rule(count=_counts)
    def drop(self, count: int) -> None:
        """Lose the next weights, which is illegal."""
        self._do("drop", count)

    @_when("reorder")
    @rule(seed=_seeds)
    def reorder(self, seed: int) -> None:
        """Shuffle what has not been sent yet."""
        self._do("reorder", seed)

    @_when("last")
    @rule()
    def last(self) -> None:
        """Send all that has not been sent yet, as the last bucket."""
        self._do("last")

    @precondition(lambda self: self.running.can("finish") and self._may_finish())
    @rule()
    def finish(self) -> None:
        """Close the sync; illegal before everything was sent."""
        self._do("finish")

    @_if_careless("fail")
    @rule()
    def fail(self) -> None:
        """Give the sync up midway, which is illegal."""
        self._do("fail")

    @precondition(lambda self: not (self.careful and self.running.can("finish")))
    @rule(noise=st.integers(0, 3))
    def train(self, noise: int) -> None:
        """Change the learner; illegal if some of the weights of an open sync are sent already."""
        self._do("train", noise)

    @_when("finalize")
    @rule()
    def finalize(self) -> None:
        """Run all post-processing once more, which changes nothing."""
        self._do("finalize")

    @_when("capture")
    @rule()
    def capture(self) -> None:
        """Capture the decoding forward anew."""
        self._do("capture")

    @_when("rebalance")
    @rule(seed=_seeds)
    def rebalance(self, seed: int) -> None:
        """Place experts in other slots, which changes no answer."""
        self._do("rebalance", seed)

    @_when("sleep")
    @rule(level=st.sampled_from((1, 2)))
    def sleep(self, level: int) -> None:
        """Release memory, with the weights kept aside or not."""
        self._do("sleep", level)

    @_when("wake")
    @rule()
    def wake(self) -> None:
        """Take memory again."""
        self._do("wake")

    @rule()
    def serve(self) -> None:
        """Ask for tokens: those of the last sync, or a refusal."""
        self._do("serve")

    @invariant()
    def nothing_is_served_that_must_not_be(self) -> None:
        """C11, after every operation."""
        self.running.check_refusal()
        self._agree()

    def teardown(self) -> None:
        """Leave no paused engine behind, since module globals are paused too; write the case."""
        if not hasattr(self, "running"):
            return
        self.running.close()
        if self.log is not None:
            self.log.write(
                Case.of(
                    self.running,
                    test=type(self).__name__,
                    topology=self.topology,
                    seed=self.seed,
                    seconds=time.perf_counter() - self.began,
                )
            )

    def _may_finish(self) -> bool:
        return not (self.careful and self.running.can("last"))

    def _do(self, name: str, value: int = 0) -> None:
        self.running.do(Op(name, value))
        self._agree()

    def _agree(self) -> None:
        if self.running.complaints:
            program = format_program(self.running.program)
            raise AssertionError(
                f"{self.running.complaints[0]}\n"
                f"  program: {program}\n"
                f"  on: {self.topology}, seed {self.seed}"
            )
