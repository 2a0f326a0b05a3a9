"""The fixture that arms faults."""

import pytest

from tests.plugin.conftest import Running

ARMED = """
    def test_fault(syncguard_guard, syncguard_faults):
        with syncguard_faults.armed("stale-packed-head") as world:
            verdicts = syncguard_guard.judge()
        assert world.fired
        assert "exact-probe" in {v.check for v in verdicts if v.status == "fail"}
        syncguard_guard.sync(poison=0xA5)
"""


def test_an_armed_fault_is_seen_and_ends_with_its_block(running: Running) -> None:
    running(ARMED).assert_outcomes(passed=1)


def test_a_fault_without_a_site_skips_the_test(running: Running) -> None:
    result = running(
        """
        import pytest

        @pytest.fixture
        def without_seams(syncguard_engine, syncguard_learner, monkeypatch):
            for side in (syncguard_engine, syncguard_learner):
                monkeypatch.setattr(side, "seams", dict)

        def test_fault(without_seams, syncguard_faults):
            assert syncguard_faults.sites("stale-packed-head") == []
            with syncguard_faults.armed("stale-packed-head"):
                raise AssertionError
        """
    )
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["skipped 1: the adapter of stub offers no seam 'storage'"])


def test_a_fault_that_changes_nothing_fails_the_test(running: Running) -> None:
    result = running(
        """
        def test_fault(syncguard_faults):
            with syncguard_faults.armed("stale-packed-head", "lm_head.packed"):
                pass
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*'stale-packed-head' at lm_head.packed changed nothing*"])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("'stale-packed-hat'", "no fault 'stale-packed-hat'; did you mean stale-packed-head?"),
        ("'nope'", "no fault 'nope' `syncguard list faults` shows them"),
        ("'stale-packed-head', 'no.such.site'", "no.such.site"),
    ],
)
def test_wrong_names(running: Running, call: str, said: str) -> None:
    result = running(f"""
    import pytest
    import re

    def test_fault(syncguard_faults):
        said = re.escape({said!r})
        with pytest.raises(KeyError, match=said), syncguard_faults.armed({call}):
            raise AssertionError
    """)
    result.assert_outcomes(passed=1)
