"""The ready suite, run as a maintainer runs it against an adapter."""

from pathlib import Path

import pytest

from syncguard.report import Report
from syncguard.verdict import Status

STALE = "tests.plugin.planted:stale"
TESTS = "test_check_passes_after_every_sync"


@pytest.fixture
def suite(pytester: pytest.Pytester) -> "Suite":
    return Suite(pytester)


class Suite:
    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester

    @property
    def folder(self) -> Path:
        return self._pytester.path

    def __call__(self, selected: str, *arguments: str) -> pytest.RunResult:
        return self._pytester.runpytest_inprocess(
            "--pyargs", "syncguard.suite", "-p", "no:cacheprovider", "-k", selected, *arguments
        )


def test_a_healthy_stub_passes(suite: Suite) -> None:
    result = suite("not fault", "--syncguard-report=report.json")
    assert result.parseoutcomes().keys() <= {"passed", "skipped", "deselected"}
    assert result.ret == 0
    report = Report.from_json((suite.folder / "report.json").read_text())
    assert report.status is Status.PASS
    assert len(report.syncs) > 6


def test_an_adapter_with_a_stale_copy_fails_and_the_check_is_named(suite: Suite) -> None:
    result = suite("not fault", "--syncguard-engine", STALE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    failed = result.stdout.str().partition("short test summary info")[2]
    assert f"{TESTS}[exact-probe]" in failed
    assert f"{TESTS}[re-derivation]" in failed
    assert "test_a_warm_engine_equals_a_cold_one" in failed
    result.stdout.fnmatch_lines(["C3 derived state*FAIL*"])
    passed = ("weight-bytes", "storage-identity", "ledger")
    assert not [name for name in passed if f"{TESTS}[{name}]" in failed]


def test_faults_are_armed_and_found(suite: Suite) -> None:
    selected = "stale-packed-head or sent-twice or (after_every_sync and layer-set)"
    result = suite(selected, "--junitxml=junit.xml", "-v")
    assert result.ret == 0
    order = [line for line in result.outlines if "PASSED" in line]
    assert f"{TESTS}[layer-set]" in order[0]  # before any fault, in random order too
    result.stdout.fnmatch_lines(["faults: 4 of 4 found at once by a check that claims them"])
    junit = (suite.folder / "junit.xml").read_text()
    assert 'name="syncguard.fault" value="stale-packed-head@lm_head.packed"' in junit
    assert 'name="syncguard.detected_by" value="ledger"' in junit


@pytest.mark.slow
def test_a_fault_that_no_check_sees_fails(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncguard.plugin.trying._detected", lambda fault, verdicts: [])
    result = suite("stale-packed-head")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "stale-packed-head@lm_head.packed was not found at the first sync",
            "  expected: a failure of exact-probe",
            "  got: no failure at all",
            "faults: 0 of 1 found at once by a check that claims them",
            "survived: stale-packed-head at lm_head.packed",
        ]
    )


def test_what_an_adapter_lacks_is_skipped_and_counted(
    suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.syspathinsert()
    pytester.makepyfile(
        bare="""
        from syncguard.stubs import StubEngine, Topology, make_stub_learner

        class Bare(StubEngine):
            name = "bare"
            seams = finalize = property(lambda self: (_ for _ in ()).throw(AttributeError()))

        started = []

        def make(seed):
            if started:
                raise RuntimeError("there is memory for one")
            started.append(1)
            learner = make_stub_learner(seed=seed)
            learner.seams = dict
            return learner, Bare(Topology(), seed=seed)
        """
    )
    result = suite("twice or cold or stale-packed-head", "--syncguard-engine=bare:make")
    assert result.parseoutcomes().keys() <= {"passed", "skipped", "deselected"}
    result.stdout.fnmatch_lines_random(
        [
            "skipped 1: the adapter of bare offers no finalize()",
            "skipped 1: the adapter of bare offers no seam 'storage'",
            "skipped 1: no second engine can be started: RuntimeError: there is memory for one",
        ]
    )


@pytest.mark.slow
def test_an_engine_that_is_never_healthy_skips_its_faults(
    suite: Suite, pytester: pytest.Pytester
) -> None:
    result = suite("stale-packed-head", "--syncguard-engine", STALE)
    assert result.parseoutcomes()["skipped"] == 1
    result.stdout.fnmatch_lines(["skipped 1: without a fault exact-probe gives fail: *"])
