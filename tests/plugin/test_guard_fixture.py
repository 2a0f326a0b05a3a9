"""What ``syncguard_guard`` makes of a sync."""

import pytest

from tests.plugin.conftest import Running

HEALTHY = """
    def test_sync(syncguard_guard):
        verdicts = syncguard_guard.sync(poison=0xA5)
        assert {f"C{n}" for n in range(1, 8)} <= {v.condition for v in verdicts}
"""

STALE = """
    from tests.plugin.planted import held_back

    def test_sync(syncguard_guard):
        with held_back(syncguard_guard.engine, "model.layers.0.self_attn.qkv_proj"):
            syncguard_guard.sync(poison=0xA5)
"""


def test_a_healthy_sync_passes(running: Running) -> None:
    running(HEALTHY).assert_outcomes(passed=1)


def test_a_violated_condition_fails_the_test_and_says_what_where_and_what_to_do(
    running: Running,
) -> None:
    result = running(STALE)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "FAIL C3 derived state | exact-probe | model.layers.0.self_attn.q_proj.weight | sync 1",
            "  *compute with other weights than the learner",
            "  what to do   *",
        ]
    )
    assert "C2 weight grid" not in result.stdout.str().split("=== syncguard ===")[0]


def test_judge_returns_what_sync_would_fail_for_and_reports_nothing(running: Running) -> None:
    result = running(STALE.replace(".sync(", ".judge("))
    result.assert_outcomes(passed=1)
    assert "derived state" not in result.stdout.str()


def test_only_the_conditions_of_the_markers_are_checked(running: Running) -> None:
    result = running("""
        import pytest

        pytestmark = pytest.mark.syncguard(conditions="C5")

        @pytest.mark.syncguard(conditions=["C1", "C3"])
        def test_some(syncguard_guard):
            assert syncguard_guard.conditions == ("C1", "C3", "C5")
            assert {v.condition for v in syncguard_guard.sync()} == {"C1", "C3", "C5", "C7"}
    """)
    result.assert_outcomes(passed=1)
    table = result.stdout.str().partition("=== syncguard ===")[2]
    assert "C3 derived state" in table
    assert "C2 weight grid" not in table


def test_a_condition_that_no_check_judges_is_not_passed_over(running: Running) -> None:
    result = running("""
        import pytest
        from syncguard.checks import CHECKS

        @pytest.mark.syncguard(conditions="C1 C5")
        def test_some(syncguard_guard, monkeypatch):
            known = {n: c for n, c in CHECKS.items() if c.condition != "C5"}
            monkeypatch.setattr("syncguard.plugin.guarding.CHECKS", known)
            syncguard_guard.sync()
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["not run C5 completeness: no check judges this condition"])


NOT_RUN = """
    from syncguard.errors import Unsupported

    def refuse():
        raise Unsupported("this engine has no probe")

    def test_sync(syncguard_guard, monkeypatch):
        monkeypatch.setattr(syncguard_guard.engine, "probe_exact", refuse)
        syncguard_guard.sync(poison=0xA5)
"""


def test_a_check_that_cannot_run_fails_the_test(running: Running) -> None:
    result = running(NOT_RUN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "not run C3 derived state | exact-probe | unsupported | sync 1",
            "*this engine has no probe",
            "--syncguard-not-run=warn lets a test pass although a check could not run",
        ]
    )


def test_a_check_that_cannot_run_warns_if_it_may(running: Running) -> None:
    result = running(NOT_RUN, "--syncguard-not-run=warn")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*NotRunWarning: not run C3 derived state | *", "C3 derived state*not run*"]
    )


def test_a_failure_is_a_failure_even_if_not_run_may_warn(running: Running) -> None:
    running(STALE, "--syncguard-not-run=warn").assert_outcomes(failed=1)


def test_a_sync_that_breaks_off_fails_whatever_is_checked(running: Running) -> None:
    result = running("""
        import pytest

        def broken(bucket):
            raise ConnectionError("the wire is cut")

        @pytest.mark.syncguard(conditions="C1")
        def test_sync(syncguard_guard, monkeypatch):
            monkeypatch.setattr(syncguard_guard.engine, "send", broken)
            syncguard_guard.sync()
    """)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["FAIL the sync ended with an error: ConnectionError: the wire*"])


def test_versions_never_come_twice(running: Running) -> None:
    result = running("""
        def versions(guard):
            guard.sync()
            return guard.engine.version()

        def test_one(syncguard_guard):
            assert versions(syncguard_guard) == "1"

        def test_two(syncguard_guard):
            assert versions(syncguard_guard) == "2"
    """)
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("fixture", ["syncguard_learner", "syncguard_engine"])
def test_own_sides_take_the_place_of_the_options(running: Running, fixture: str) -> None:
    result = running(
        """
        import pytest
        from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

        TIED = Topology(tied=True)

        @pytest.fixture(scope="module")
        def syncguard_learner():
            return make_stub_learner(TIED)

        @pytest.fixture(scope="module")
        def syncguard_engine():
            return make_stub_engine(TIED)

        def test_sync(syncguard_guard, FIXTURE):
            assert FIXTURE.topology is TIED
            syncguard_guard.sync()
    """.replace("FIXTURE", fixture)
    )
    result.assert_outcomes(passed=1)


def test_a_test_that_never_syncs_checks_nothing(running: Running) -> None:
    result = running(
        """
        import pytest

        def test_idle(syncguard_guard):
            assert syncguard_guard.engine

        def test_skipped(syncguard_guard):
            pytest.skip("not here")

        def test_judges(syncguard_guard):
            assert syncguard_guard.judge()
        """
    )
    result.assert_outcomes(failed=1, skipped=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_idle takes syncguard_guard and never syncs, so it checks nothing",
            "  what to do: call its sync() or judge(), or take syncguard_engine alone",
        ]
    )
