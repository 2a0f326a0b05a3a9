import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncguard.verdict import Coverage, Reason, Status, Verdict, explain, worst


def a_verdict(status: Status, reason: Reason | None = None) -> Verdict:
    if status is Status.NOT_RUN and reason is None:
        reason = Reason.ERROR
    return Verdict("C2", "bytes", status, reason=reason)


statuses = st.sampled_from(Status)


def test_severity_orders_pass_before_not_run_before_fail() -> None:
    assert sorted(Status, key=lambda status: status.severity) == [
        Status.PASS,
        Status.NOT_RUN,
        Status.FAIL,
    ]


@pytest.mark.parametrize(("one", "other"), list(itertools.product(Status, Status)))
def test_worst_of_two_is_the_more_severe(one: Status, other: Status) -> None:
    expected = max(one, other, key=lambda status: status.severity)
    assert worst([a_verdict(one), a_verdict(other)]) is expected


@given(st.lists(statuses, min_size=1), st.lists(statuses, min_size=1))
def test_worst_does_not_depend_on_order_or_grouping(some: list[Status], more: list[Status]) -> None:
    together = worst(map(a_verdict, some + more))
    grouped = worst([a_verdict(worst(map(a_verdict, some))), *map(a_verdict, reversed(more))])
    assert together is grouped


@given(st.lists(statuses, min_size=1), st.integers(0, 20))
def test_not_applicable_worsens_nothing(found: list[Status], at: int) -> None:
    verdicts = [a_verdict(status) for status in found]
    silent = a_verdict(Status.NOT_RUN, Reason.NOT_APPLICABLE)
    assert worst([*verdicts[:at], silent, *verdicts[at:]]) is worst(verdicts)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason != "not_applicable"])
def test_every_other_reason_worsens_a_pass(reason: Reason) -> None:
    verdicts = [a_verdict(Status.PASS), a_verdict(Status.NOT_RUN, reason)]
    assert worst(verdicts) is Status.NOT_RUN


def test_nothing_said_is_not_a_pass() -> None:
    assert worst([]) is Status.NOT_RUN
    assert worst([a_verdict(Status.NOT_RUN, Reason.NOT_APPLICABLE)]) is Status.NOT_RUN


@pytest.mark.parametrize("status", [Status.PASS, Status.FAIL])
def test_a_reason_belongs_to_not_run_alone(status: Status) -> None:
    with pytest.raises(ValueError, match=r"'bytes'.*exactly if it is not_run.*error"):
        Verdict("C2", "bytes", status, reason=Reason.ERROR)


def test_not_run_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="reason None"):
        Verdict("C2", "bytes", Status.NOT_RUN)


def test_an_unknown_condition_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'C99'; known: C1, C2, .*C13"):
        Verdict("C99", "bytes", Status.PASS)


@pytest.mark.parametrize("counts", [(2, 1, 0, 0), (0, 0, 2, 1), (-1, 0, 0, 0)])
def test_impossible_coverage_is_refused(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=f"{max(counts[0], counts[2], key=abs)} of"):
        Coverage(*counts)


def test_coverage_adds_and_knows_when_it_is_complete() -> None:
    whole = Coverage(1, 1, 64, 64)
    partial = whole + Coverage(0, 1, 0, 32)
    assert partial == Coverage(1, 2, 64, 96)
    assert whole.complete
    assert not partial.complete


def test_explain_labels_what_is_given_and_leaves_out_the_rest() -> None:
    assert explain("the bytes differ", where="lm_head", todo="sync again") == (
        "the bytes differ\n  where: lm_head\n  what to do: sync again"
    )
