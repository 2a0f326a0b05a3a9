"""Hypothesis drives programs of syncs on the stub; what it finds shrinks to the shortest.

``SYNCGUARD_EXAMPLES=1000 pytest tests/test_statemachine.py -k Programs`` looks harder.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from syncguard.caselog import Case, CaseLog, read_cases
from syncguard.checks import CHECKS
from syncguard.programs import parse_program
from syncguard.statemachine import SyncMachine
from syncguard.strategies import topologies
from syncguard.stubs import StubLearner, Topology, make_stub_engine, make_stub_learner

EXAMPLES = int(os.environ.get("SYNCGUARD_EXAMPLES", "8"))
SMALL = Topology(layers=1, hidden=32, vocab=32, intermediate=32)
_SETTINGS = settings(
    deadline=None,
    derandomize="SYNCGUARD_EXAMPLES" not in os.environ,
    database=None,
    stateful_step_count=14,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class Programs(SyncMachine):
    """Programs on all topologies."""


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(_SETTINGS, max_examples=EXAMPLES)


def shortest(machine: type[SyncMachine], log: Path) -> Case:
    """The program to which a failure shrinks: the last one that Hypothesis runs."""
    machine.log = CaseLog(log)
    quick = settings(
        _SETTINGS,
        max_examples=40,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    with pytest.raises(AssertionError, match="program: "):
        run_state_machine_as_test(machine, settings=quick)
    return list(read_cases(log))[-1]


class Planted(SyncMachine):
    """Machines of one small topology with a fault in the engine."""

    shapes = st.just(SMALL)
    checks = tuple(CHECKS[name] for name in ("weight-bytes", "exact-probe", "ledger", "session"))
    seam, site = "", "engine"

    def make_sides(self, topology: Topology, seed: int) -> tuple[StubLearner, Any]:
        engine: Any = make_stub_engine(topology, seed=seed)
        engine.planted = engine.seams()[self.seam][self.site].wrap(self.wrapper)
        engine.planted.__enter__()
        return make_stub_learner(topology, seed=seed), engine

    def wrapper(self, original: Any) -> Any:
        """Do nothing in its place."""
        return lambda *args, **kwargs: None


def test_a_stale_copy_shrinks_to_one_whole_sync(tmp_path: Path) -> None:
    class Stale(Planted):
        seam, site = "post_process", "lm_head"

    case = shortest(Stale, tmp_path / "cases.ndjson")
    assert case.syncs[0]["failed"] == ["exact-probe"]
    names = [op.name for op in case.operations]
    assert (names[0], names[-1], set(names[1:-1])) == ("open", "finish", {"send"}) or names == [
        "open",
        "last",
        "finish",
    ]


def test_an_engine_that_serves_a_half_written_model_shrinks_to_an_open(tmp_path: Path) -> None:
    class Serving(Planted):
        seam = "admit"

    case = shortest(Serving, tmp_path / "cases.ndjson")
    assert len(case.program) <= 3
    assert case.complaints[0].startswith("served although ")


def test_every_program_is_logged_and_can_be_run_again(tmp_path: Path) -> None:
    class Logged(SyncMachine):
        shapes = topologies(layers=1, ranks=1, replicas=1)
        log = CaseLog(tmp_path / "cases.ndjson")

    few = settings(_SETTINGS, max_examples=4, phases=[Phase.generate])
    run_state_machine_as_test(Logged, settings=few)
    cases = list(read_cases(tmp_path / "cases.ndjson"))
    assert len(cases) >= 4
    with_syncs = max(cases, key=lambda case: len(case.syncs))
    again = with_syncs.replay()
    assert [list(sync.failed) for sync in again.syncs] == [s["failed"] for s in with_syncs.syncs]
    assert parse_program("; ".join(with_syncs.program)) == tuple(again.program)
