"""The report of a run, in one process and from several workers."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from syncguard.report import Report
from syncguard.verdict import Status
from tests.plugin.conftest import Running

TWO = """
    import pytest

    def test_again(syncguard_guard):
        syncguard_guard.sync(poison=0xA5)
        syncguard_guard.sync(same_weights=True, what="the same weights again")

    @pytest.mark.syncguard(conditions="C2")
    def test_bytes(syncguard_guard):
        syncguard_guard.sync()
"""


def read(folder: Path) -> Report:
    return Report.from_json((folder / "report.json").read_text())


def test_report_of_one_process(running: Running, pytester: pytest.Pytester) -> None:
    result = running(TWO, "--syncguard-report=report.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"report: {pytester.path}/report.json"])
    report = read(pytester.path)
    assert [(sync.number, sync.what) for sync in report.syncs] == [
        (1, "test_it.py::test_again: the learner's weights"),
        (2, "test_it.py::test_again: the same weights again"),
        (3, "test_it.py::test_bytes: the learner's weights"),
    ]
    assert {v.condition for v in report.verdicts if v.sync == 3} == {"C2", "C7"}
    assert set(report.conditions) == {f"C{number}" for number in range(1, 8)}
    assert report.environment["engine"]["engine"] == "stub"  # type: ignore[index]


def test_workers_hand_what_they_found_to_one_report(pytester: pytest.Pytester) -> None:
    """Even when one of them dies."""
    pytester.makepyfile(
        test_it="""
        import os

        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_sync(syncguard_guard, number):
            syncguard_guard.sync(what=str(number))

        def test_then_dies(syncguard_guard):
            os._exit(3)
        """
    )
    result = pytester.runpytest_subprocess(
        "-n2",
        "--max-worker-restart=0",
        "-pno:randomly",
        "--syncguard-report=report.json",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=4, failed=1)
    report = read(pytester.path)
    assert [(sync.number, sync.what) for sync in report.syncs] == [
        *((n + 1, f"test_it.py::test_sync[{n}]: {n}") for n in range(4)),
        (5, "test_it.py::test_then_dies"),
    ]
    assert report.syncs[-1].error == "the worker died during this test"
    assert report.status is not Status.PASS
    assert {v.sync for v in report.verdicts if v.check == "exact-probe"} == {1, 2, 3, 4}
    assert result.stdout.str().count("=== syncguard ===") == 1
    cases = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")  # noqa: S314
    statuses = {case.get("name", ""): properties(case) for case in cases}
    assert statuses["test_sync[2]"]["syncguard.C3.status"] == "pass"


def test_junit_carries_condition_status_and_cost(
    running: Running, pytester: pytest.Pytester
) -> None:
    running(
        """
        from tests.plugin.planted import QKV, held_back

        def test_sync(syncguard_guard, request):
            request.node.user_properties.append(("mine", "kept"))
            syncguard_guard.sync(poison=0xA5)
            with held_back(syncguard_guard.engine, QKV):
                syncguard_guard.sync(poison=0x5A)
        """,
        "--junitxml=junit.xml",
    ).assert_outcomes(failed=1)
    (case,) = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")  # noqa: S314
    found = properties(case)
    assert found["mine"] == "kept"
    assert (found["syncguard.C2.status"], found["syncguard.C3.status"]) == ("pass", "fail")
    assert 0 < float(found["syncguard.C3.cost_s"]) < 60


def properties(case: ElementTree.Element) -> dict[str, str]:
    pairs = [(each.get("name", ""), each.get("value", "")) for each in case.iter("property")]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def test_a_run_that_checked_nothing_does_not_pass(
    running: Running, pytester: pytest.Pytester
) -> None:
    result = running("def test_nothing(): pass", "--syncguard-report=report.json")
    result.stdout.fnmatch_lines(["no test of this run checked a sync"])
    assert read(pytester.path).status is Status.NOT_RUN


def test_an_interrupted_run_keeps_what_it_found(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        def test_a(syncguard_guard):
            syncguard_guard.sync()

        def test_b():
            raise KeyboardInterrupt
        """
    )
    result = pytester.runpytest_inprocess(
        "-pno:randomly", "--syncguard-report=report.json", no_reraise_ctrlc=True
    )
    assert result.ret == pytest.ExitCode.INTERRUPTED
    report = read(pytester.path)
    assert report.interrupted
    assert report.verdicts


def test_a_report_that_cannot_be_written_at_the_end(running: Running) -> None:
    result = running(
        """
        from pathlib import Path

        def test_a(syncguard_guard):
            syncguard_guard.sync()
            Path("report.json").write_text("something else came in between")
        """,
        "--syncguard-report=report.json",
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["C1 layer set*pass*", "ERROR: will not overwrite*"])


def test_terminal_shows_every_core_condition(running: Running) -> None:
    result = running("def test_sync(syncguard_guard): syncguard_guard.sync(poison=0xA5)")
    result.stdout.fnmatch_lines(
        [
            "*= syncguard =*",
            "condition*verdict*layers*bytes*measured*bound*cost",
            "C1 layer set*",
            "C2 weight grid*",
            "C3 derived state*",
            "C4 storage identity*",
            "C5 completeness*",
            "C6 output sanity*",
            "C7 observability*",
        ]
    )
