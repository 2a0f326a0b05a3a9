"""C10: what no sync brings stays what it was."""

import pytest

from syncguard.checks.preserved_state import preserved_state
from syncguard.verdict import Coverage, Reason
from tests.checks.factories import fails, parts_of, passes, silent

STATE = {"a": 1, "b": 2}


def test_equal_state_passes_whatever_is_new() -> None:
    judgement = preserved_state(STATE, {**STATE, "new": 3})
    assert passes(judgement, 2)
    assert judgement.message == "2 tensors that no sync brings are unchanged"
    assert preserved_state({"a": 1}, STATE).message == "1 tensor that no sync brings is unchanged"


def test_a_change_is_named() -> None:
    judgement = preserved_state(STATE, {"a": 1, "b": 9})
    assert fails(judgement, "b")
    assert judgement.evidence == (("b", "changed"),)
    assert judgement.coverage == Coverage(2, 2)
    told = parts_of(judgement)
    assert told["what"] == "1 tensor that no sync brings changed in one"
    assert told["where"] == "b"
    assert told["got"] == "b has other content"


def test_all_changes_are_named() -> None:
    judgement = preserved_state({"c": 3, **STATE}, {"a": 9, "b": 9, "c": 3})
    assert fails(judgement, "a", measured=2)
    assert [path for path, _ in judgement.evidence] == ["a", "b"]
    assert parts_of(judgement)["what"] == "2 tensors that no sync brings changed in one"


def test_what_vanished_is_not_covered() -> None:
    assert preserved_state(STATE, {"a": 1}).coverage == Coverage(1, 2)


def test_nothing_left_to_compare_is_missing_input() -> None:
    judgement = preserved_state(STATE, {"c": 1})
    assert silent(judgement, Reason.MISSING_INPUT)
    assert judgement.message == "none of these tensors is left to compare"


@pytest.mark.parametrize(("before", "after"), [(None, STATE), ({}, STATE), (STATE, None)])
def test_an_engine_that_does_not_tell_is_not_applicable(
    before: dict[str, int] | None, after: dict[str, int] | None
) -> None:
    judgement = preserved_state(before, after)
    assert silent(judgement, Reason.NOT_APPLICABLE)
    assert judgement.message == "the engine does not tell what no sync brings"
