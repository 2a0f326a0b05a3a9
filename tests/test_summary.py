import math

import pytest

from syncguard.summary import Summary, summarize
from syncguard.verdict import Coverage, Reason, Status, Verdict
from tests.reports import a_pass


def only(*verdicts: Verdict) -> Summary:
    (summary,) = summarize(["C3"], verdicts)
    return summary


def probe(check: str = "probe", status: Status = Status.PASS, **fields: object) -> Verdict:
    reason = Reason.ERROR if status is Status.NOT_RUN else None
    return Verdict("C3", check, status, reason=reason, **fields)  # type: ignore[arg-type]


def test_conditions_come_in_order_whatever_the_order_of_verdicts() -> None:
    found = summarize(["C5", "C2"], [a_pass("C10"), a_pass("C9"), a_pass("C1")])
    assert [summary.condition.id for summary in found] == ["C1", "C2", "C5", "C9", "C10"]


def test_the_worst_status_is_more_telling_than_any_measurement() -> None:
    failed = probe("exact", Status.FAIL)
    summary = only(probe(measured=0.9, bound=1), failed, probe("c", Status.NOT_RUN))
    assert summary.telling is failed
    assert summary.status is Status.FAIL


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ((0.1, 1.0), (0.2, 1.0)),
        ((0.2, 10.0), (0.1, 1.0)),
        ((5.0, None), (0.1, 1.0)),
        ((None, None), (0.0, 0.0)),
        ((2.0, 1.0), (1.0, 0.0)),
        ((2.0, 1.0), (math.nan, 1.0)),
    ],
)
def test_of_equal_status_the_one_nearest_its_bound_tells(
    less: tuple[float | None, float | None], more: tuple[float, float]
) -> None:
    one = probe("one", measured=less[0], bound=less[1])
    other = probe("other", measured=more[0], bound=more[1])
    assert only(one, other).telling is other
    assert only(other, one).telling is other


def test_coverage_is_that_of_the_widest_check_in_the_weakest_sync() -> None:
    wide, narrow, weak = Coverage(10, 10), Coverage(3, 10), Coverage(7, 10)
    summary = only(
        probe("exact", coverage=wide, sync=1),
        probe("random", coverage=narrow, sync=1),
        probe("exact", coverage=weak, sync=2),
        probe("random", coverage=narrow, sync=2),
    )
    assert summary.coverage == weak
    assert summary.gap == "7 of 10 layers checked"


def test_coverage_ignores_what_does_not_apply_and_what_counts_nothing() -> None:
    silent = Verdict(
        "C3", "x", Status.NOT_RUN, reason=Reason.NOT_APPLICABLE, coverage=Coverage(0, 5), sync=2
    )
    summary = only(probe(coverage=Coverage(5, 5), sync=1), silent, probe("y", sync=3))
    assert summary.coverage == Coverage(5, 5)
    assert not summary.gap


def test_a_condition_to_which_nothing_applies_is_a_gap() -> None:
    silent = Verdict("C3", "x", Status.NOT_RUN, reason=Reason.NOT_APPLICABLE)
    assert not only(silent).applicable
    assert only(silent).gap == "none of its checks applies here"
    assert only(silent, probe()).applicable


def test_costs_add_up() -> None:
    assert only(probe(cost_s=0.25), probe(cost_s=0.5, sync=2)).cost_s == 0.75


def test_a_check_of_more_layers_is_wider_than_one_of_more_bytes() -> None:
    canary = probe("canary", coverage=Coverage(1, 1, 1_000_000, 1_000_000))
    weights = probe("weights", coverage=Coverage(21, 21, 1_000, 1_000))
    assert only(canary, weights).coverage == only(weights, canary).coverage == weights.coverage
