"""C3 by a metamorphic rule: the same weights again change no byte."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks.derived_state import equal_sync
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import is_complete, parts_of

STATE = {"a": 1, "b": 2, "c": 3}
states = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2), min_size=1)


def test_an_unchanged_state_passes() -> None:
    judgement = equal_sync(True, STATE, dict(STATE))
    assert judgement.status is Status.PASS
    assert judgement.message == "3 tensors are unchanged by a sync of equal weights"
    assert judgement.coverage == Coverage(3, 3)
    assert (judgement.measured, judgement.bound) == (0, 0)
    assert equal_sync(True, {"a": 1}, {"a": 1}).message.startswith("1 tensor is unchanged")


@settings(deadline=None)
@given(states, states)
def test_exactly_what_changed_came_or_went_is_named(
    before: dict[str, int], after: dict[str, int]
) -> None:
    judgement = equal_sync(True, before, after)
    changed = sorted(p for p in {*before, *after} if before.get(p) != after.get(p))
    assert [name for name, _ in judgement.evidence] == changed
    assert judgement.status is (Status.FAIL if changed else Status.PASS)
    assert judgement.measured == len(changed)
    assert judgement.coverage == Coverage(len(before.keys() & after), len({*before, *after}))


def test_a_changed_tensor_is_told_in_full() -> None:
    judgement = equal_sync(True, STATE, {**STATE, "b": 9})
    assert (judgement.subject, judgement.bound) == ("b", 0)
    assert judgement.evidence == (("b", "changed"),)
    told = parts_of(judgement)
    assert told["what"] == "a sync of equal weights changed 1 tensor"
    assert told["where"] == "b"
    assert told["got"] == "1 of 3 tensors changed"
    assert is_complete(judgement)
    two = parts_of(equal_sync(True, STATE, {**STATE, "b": 9, "d": 4}))
    assert two["what"] == "a sync of equal weights changed 2 tensors"
    assert two["got"] == "2 of 4 tensors changed"


def test_other_weights_are_not_applicable() -> None:
    judgement = equal_sync(False, STATE, {"a": 9})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.NOT_APPLICABLE)
    assert judgement.message == "this sync sent other weights than the one before"


@pytest.mark.parametrize(("before", "after"), [({}, STATE), (STATE, {})])
def test_no_answer_is_missing_input(before: dict[str, int], after: dict[str, int]) -> None:
    judgement = equal_sync(True, before, after)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "the engine reported no tensors"
