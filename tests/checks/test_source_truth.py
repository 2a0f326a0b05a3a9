"""C12: exported, trained and loaded are the same."""

import pytest

from syncguard.checks.source_truth import checkpoint_loaded, exported_weights, learner_unchanged
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import a_record, fails, passes, silent

STATE = {"a": 1, "b": 2}


def test_equal_states_pass() -> None:
    assert passes(exported_weights(a_record(), STATE, STATE), 2)
    assert passes(learner_unchanged(STATE, {**STATE, "masters": 3}), 2)
    assert passes(checkpoint_loaded(STATE, {**STATE, "masters": 3}), 2)


def test_an_export_of_something_else_is_named() -> None:
    judgement = exported_weights(a_record(), {"a": 1, "b": 9, "c": 3}, {**STATE, "d": 4})
    assert fails(judgement, "b", measured=3)
    assert judgement.evidence == (
        ("b", "another tensor was sent"),
        ("d", "was not sent"),
        ("c", "is none of the learner's names"),
    )


def test_a_learner_that_changed_is_named() -> None:
    judgement = learner_unchanged(STATE, {"b": 9})
    assert fails(judgement, "a", measured=2)
    assert judgement.evidence == (
        ("a", "is gone"),
        ("b", "changed without an optimizer step"),
    )


def test_a_learner_that_is_not_its_checkpoint_is_named() -> None:
    judgement = checkpoint_loaded({**STATE, "c": 3}, {"a": 1, "b": 9})
    assert fails(judgement, "b", measured=2)
    assert judgement.evidence == (
        ("b", "differs from the checkpoint"),
        ("c", "is not in the learner"),
    )


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
    assert silent(exported_weights(a_record(), exported, wire), Reason.NOT_APPLICABLE)


@pytest.mark.parametrize("before", [None, {}])
def test_a_learner_that_does_not_tell_is_not_applicable(before: dict[str, int] | None) -> None:
    assert silent(learner_unchanged(before, STATE), Reason.NOT_APPLICABLE)
    assert silent(learner_unchanged(STATE, None), Reason.NOT_APPLICABLE)
    assert silent(checkpoint_loaded(before, STATE), Reason.NOT_APPLICABLE)
    assert silent(checkpoint_loaded(STATE, before), Reason.NOT_APPLICABLE)
