"""C12: exported, trained and loaded are the same."""

from syncguard.checks.source_truth import checkpoint_loaded, exported_weights, learner_unchanged
from syncguard.verdict import Reason
from tests.checks.factories import fails, passes, silent

STATE = {"a": 1, "b": 2}


def test_equal_states_pass() -> None:
    assert passes(exported_weights(STATE, STATE), 2)
    assert passes(learner_unchanged(STATE, {**STATE, "masters": 3}), 2)
    assert passes(checkpoint_loaded(STATE, {**STATE, "masters": 3}), 2)


def test_an_export_of_something_else_is_named() -> None:
    judgement = exported_weights({"a": 1, "b": 9, "c": 3}, {**STATE, "d": 4})
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


def test_a_side_that_does_not_tell_is_not_applicable() -> None:
    for check in (exported_weights, learner_unchanged, checkpoint_loaded):
        for one, other in (({}, STATE), (STATE, {})):
            if check is not learner_unchanged or not one:
                assert silent(check(one, other), Reason.NOT_APPLICABLE)
    assert silent(learner_unchanged(STATE, None), Reason.NOT_APPLICABLE)
    assert silent(learner_unchanged(None, STATE), Reason.NOT_APPLICABLE)
