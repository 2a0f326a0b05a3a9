"""The pieces that checks build their answers from."""

import pytest

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.verdict import Coverage, Reason, Status


def test_answers_carry_what_they_are_given() -> None:
    coverage = Coverage(1, 2)
    assert passed("m", coverage, measured=1, bound=2, evidence=iter([("a", "b")])) == Judgement(
        Status.PASS, "m", None, "", 1, 2, coverage, (("a", "b"),)
    )
    assert failed("m", coverage, subject="s", measured=3, bound=2, evidence={"a": "b"}.items()) == (
        Judgement(Status.FAIL, "m", None, "s", 3, 2, coverage, (("a", "b"),))
    )
    assert not_run(Reason.ERROR, "m", coverage, evidence=[("a", "b")]) == Judgement(
        Status.NOT_RUN, "m", Reason.ERROR, "", None, None, coverage, (("a", "b"),)
    )


def test_an_answer_that_did_not_run_covers_nothing_by_default() -> None:
    assert not_run(Reason.TIMEOUT, "m").coverage == Coverage()


@pytest.mark.parametrize(
    ("number", "told"), [(0, "0 layers differ"), (1, "1 layer differs"), (2, "2 layers differ")]
)
def test_numbers_agree_with_what_they_count(number: int, told: str) -> None:
    assert counted(number, "layer differs", "layers differ") == told


def test_a_few_names_are_all_listed_and_many_are_counted() -> None:
    names = [f"n{number}" for number in range(10)]
    assert listed([]) == ""
    assert listed(names[:8]) == "n0, n1, n2, n3, n4, n5, n6, n7"
    assert listed(names[:9]) == "n0, n1, n2, n3, n4, n5, n6, n7 and 1 more"
    assert listed(names) == "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"
