"""C10: what no sync brings stays what it was."""

from syncguard.checks.preserved_state import preserved_state
from syncguard.verdict import Coverage, Reason
from tests.checks.factories import fails, passes, silent

STATE = {"a": 1, "b": 2}


def test_equal_state_passes_whatever_is_new() -> None:
    assert passes(preserved_state(STATE, {**STATE, "new": 3}), 2)


def test_a_change_is_named() -> None:
    assert fails(preserved_state(STATE, {"a": 1, "b": 9}), "b")


def test_what_vanished_is_not_covered() -> None:
    assert preserved_state(STATE, {"a": 1}).coverage == Coverage(1, 2)


def test_nothing_left_to_compare_is_missing_input() -> None:
    assert silent(preserved_state(STATE, {"c": 1}), Reason.MISSING_INPUT)


def test_an_engine_that_does_not_tell_is_not_applicable() -> None:
    for before, after in ((None, STATE), ({}, STATE), (STATE, None)):
        assert silent(preserved_state(before, after), Reason.NOT_APPLICABLE)
