"""C12: exported, trained and loaded are the same."""

import pytest

from syncguard.checks.source_truth import checkpoint_loaded, exported_weights, learner_unchanged
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import a_record, fails, parts_of, passes, silent

STATE = {"a": 1, "b": 2}


def test_equal_states_pass() -> None:
    more = {**STATE, "masters": 3}
    told = {
        "were exported as the learner holds them": exported_weights(a_record(), STATE, STATE),
        "are unchanged by the sync": learner_unchanged(STATE, more),
        "are those of the checkpoint": checkpoint_loaded(STATE, more),
    }
    for text, judgement in told.items():
        assert passes(judgement, 2)
        assert judgement.message == f"2 of 2 tensors {text}"


def test_an_export_of_something_else_is_named() -> None:
    judgement = exported_weights(a_record(), {"a": 1, "b": 9, "c": 3}, {**STATE, "d": 4})
    assert fails(judgement, "b", measured=3)
    assert judgement.evidence == (
        ("b", "another tensor was sent"),
        ("d", "was not sent"),
        ("c", "is none of the learner's names"),
    )
    told = parts_of(judgement)
    assert told["what"] == "3 tensors are exported otherwise than the learner holds them"
    assert told["where"] == "b, d, c"
    assert told["got"] == "b: another tensor was sent"
    assert judgement.coverage == Coverage(3, 3)


def test_a_learner_that_changed_is_named() -> None:
    judgement = learner_unchanged(STATE, {"b": 9})
    assert fails(judgement, "a", measured=2)
    assert judgement.evidence == (
        ("a", "is gone"),
        ("b", "changed without an optimizer step"),
    )
    one = learner_unchanged(STATE, {**STATE, "b": 9})
    assert parts_of(one)["what"] == "1 tensor is changed by the sync itself"
    assert parts_of(one)["where"] == "b"


def test_a_learner_that_is_not_its_checkpoint_is_named() -> None:
    judgement = checkpoint_loaded({**STATE, "c": 3}, {"a": 1, "b": 9})
    assert fails(judgement, "b", measured=2)
    assert judgement.evidence == (
        ("b", "differs from the checkpoint"),
        ("c", "is not in the learner"),
    )
    what = "2 tensors are other than in the checkpoint that the learner started from"
    assert parts_of(judgement)["what"] == what
    assert judgement.coverage == Coverage(3, 3)


def test_a_failed_sync_need_not_have_sent_everything() -> None:
    broken = a_record(error="ValueError")
    judgement = exported_weights(broken, {"a": 1}, STATE)
    assert (judgement.status, judgement.coverage) == (Status.PASS, Coverage(1, 2))
    assert judgement.message.startswith("1 of 2 tensors were exported as the learner holds them")
    assert exported_weights(broken, {"a": 9}, STATE).evidence == (("a", "another tensor was sent"),)


@pytest.mark.parametrize(("exported", "wire"), [({}, STATE), (STATE, {})])
def test_an_export_of_which_nothing_is_known_is_not_applicable(
    exported: dict[str, int], wire: dict[str, int]
) -> None:
    judgement = exported_weights(a_record(), exported, wire)
    assert silent(judgement, Reason.NOT_APPLICABLE)
    assert judgement.message == "the learner does not tell its state"


@pytest.mark.parametrize("before", [None, {}])
def test_a_learner_that_does_not_tell_is_not_applicable(before: dict[str, int] | None) -> None:
    unchanged = [learner_unchanged(before, STATE), learner_unchanged(STATE, None)]
    loaded = [checkpoint_loaded(before, STATE), checkpoint_loaded(STATE, before)]
    assert all(silent(each, Reason.NOT_APPLICABLE) for each in unchanged + loaded)
    told = {each.message for each in unchanged}
    assert told == {"the learner does not tell its state"}
    told = {each.message for each in loaded}
    assert told == {"the learner has been trained, or does not tell its checkpoint"}
