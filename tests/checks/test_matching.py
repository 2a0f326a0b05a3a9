"""Copies and ties: which answers speak of which weight."""

import pytest

from syncguard.checks.matching import NO_RANKS, answers, on_ranks
from syncguard.observations import LearnerLayer, Unreadable
from tests.checks.factories import a_learner_layer

EMBEDDING = a_learner_layer("embed", kind="embedding")
HEAD = LearnerLayer("head", "bf16", "head", (8, 64), "embed")


def answer(weight: str) -> Unreadable:
    return Unreadable(weight, "")


def test_each_weight_has_the_answers_of_all_its_copies() -> None:
    given = {"embed": answer("embed"), "embed@rank1": answer("embed"), "other": answer("other")}
    assert answers([EMBEDDING], given) == {
        "embed": {"embed": given["embed"], "embed@rank1": given["embed@rank1"]}
    }


def test_copies_alone_are_enough() -> None:
    given = {"embed@rank1": answer("embed")}
    assert answers([EMBEDDING], given) == {"embed": given}


def test_a_tied_weight_has_its_own_answers_if_there_are_any() -> None:
    given = {"embed": answer("embed"), "head": answer("head")}
    assert answers([EMBEDDING, HEAD], given)["head"] == {"head": given["head"]}


def test_a_tied_weight_without_answers_has_those_of_the_other_name() -> None:
    given = {"embed": answer("embed")}
    assert answers([EMBEDDING, HEAD], given)["head"] == given


def test_a_weight_without_any_has_none() -> None:
    assert answers([EMBEDDING, HEAD], {}) == {"embed": {}, "head": {}}
    assert answers([EMBEDDING], {"x": answer("")}) == {"embed": {}}


@pytest.mark.parametrize(("ranks", "told"), [((1,), ", on rank 1"), ((0, 2), ", on ranks 0, 2")])
def test_the_ranks_of_a_shared_weight_are_told(ranks: tuple[int, ...], told: str) -> None:
    assert on_ranks({"q": ranks}, "q") == told


def test_a_weight_that_is_not_shared_has_no_ranks() -> None:
    assert on_ranks(NO_RANKS, "q") == on_ranks({"q": ()}, "q") == on_ranks({"k": (1,)}, "q") == ""
