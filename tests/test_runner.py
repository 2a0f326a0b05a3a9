"""Whatever a check does, its verdict comes, and only a real pass is one."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from syncguard import observing
from syncguard.checks import CHECKS, Check, Judgement
from syncguard.checks.judgement import failed, not_run, passed
from syncguard.conditions import CONDITIONS
from syncguard.errors import Unsupported
from syncguard.observations import GraphReads, SyncRecord
from syncguard.observing import SyncContext, View
from syncguard.runner import OBSERVABILITY, run_checks
from syncguard.verdict import Coverage, Reason, Status, Verdict
from tests.checks.factories import parts_of as parts_of_message

FULL = Coverage(3, 3, 10, 10)
GOOD = passed("all is well", FULL, measured=0.5, bound=1.0, evidence=[("a", "b")])
BAD = failed("it is not", FULL, subject="q", measured=2, bound=1, evidence=[("q", "wrong")])


def parts_of(verdict: Verdict) -> dict[str, str]:
    return parts_of_message(Judgement(verdict.status, verdict.message))


def a_check(
    judge: Callable[..., Any], name: str = "one", condition: str = "C2", needs: tuple[str, ...] = ()
) -> Check:
    return Check(name, condition, judge, needs, "Do.")


def answering(answer: Any, name: str = "one", condition: str = "C2") -> Check:
    return a_check(lambda: answer, name, condition)


def raising(error: BaseException, name: str = "one") -> Check:
    def judge() -> Judgement:
        raise error

    return a_check(judge, name)


@pytest.fixture
def view() -> View:
    side: Any = None
    context = SyncContext(SyncRecord(7, "7"), (), GraphReads(frozenset(), captured=False))
    return View(side, side, context)


def ran(view: View, *checks: Check, **options: Any) -> list[Verdict]:
    return run_checks(view, checks=checks, **options)


def test_an_answer_becomes_a_verdict_as_it_is(view: View) -> None:
    for judgement in (GOOD, BAD, not_run(Reason.NOT_APPLICABLE, "not here", Coverage(0, 3))):
        verdict, _ = ran(view, answering(judgement, "bytes", "C5"))
        assert verdict == Verdict(
            condition="C5",
            check="bytes",
            status=judgement.status,
            message=judgement.message,
            reason=judgement.reason,
            subject=judgement.subject,
            measured=judgement.measured,
            bound=judgement.bound,
            coverage=judgement.coverage,
            cost_s=verdict.cost_s,
            sync=7,
            evidence=judgement.evidence,
        )


def test_a_check_is_given_what_it_asks_for(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "OBSERVERS", {"a": lambda _: 1, "b": lambda _: 2})

    def judge(a: int, b: int) -> Judgement:
        return replace(GOOD, message=f"{a} {b}")

    verdict, _ = ran(view, a_check(judge, needs=("a", "b")))
    assert verdict.message == "1 2"


@pytest.mark.parametrize(
    ("error", "reason", "got"),
    [
        (ValueError("no such row"), Reason.ERROR, "ValueError: no such row"),
        (ValueError(), Reason.ERROR, "ValueError"),
        (KeyError("q"), Reason.ERROR, "KeyError: 'q'"),
        (AssertionError("odd"), Reason.ERROR, "AssertionError: odd"),
        (SystemExit(0), Reason.ERROR, "SystemExit: 0"),
        (RecursionError("deep"), Reason.ERROR, "RecursionError: deep"),
        (
            Unsupported("this engine has no kernels"),
            Reason.UNSUPPORTED,
            "this engine has no kernels",
        ),
    ],
)
def test_what_a_check_raises_is_the_reason_of_a_verdict(
    view: View, error: BaseException, reason: Reason, got: str
) -> None:
    verdict, c7 = ran(view, raising(error))
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, reason)
    assert verdict.coverage == Coverage()
    told = parts_of(verdict)
    assert told["what"] == "the check gave no answer"
    assert told["got"] == got
    assert told["what to do"]
    assert (c7.status, c7.evidence) == (Status.PASS, (("one", str(reason)),))


def test_each_reason_says_what_to_do_about_it(view: View) -> None:
    def waiting() -> Judgement:
        time.sleep(30)
        return GOOD

    verdicts = ran(
        view, raising(ValueError()), raising(Unsupported("x")), a_check(waiting), timeout_s=0.03
    )
    todo = [parts_of(verdict)["what to do"] for verdict in verdicts[:3]]
    assert todo == [
        "treat the sync as unchecked; mend the observation or the check",
        "ask the engine's adapter for this observation, or check it elsewhere",
        "see whether the engine hangs; raise the time limit if it is only slow",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="no alarms there")
def test_a_check_that_hangs_times_out_and_the_next_one_runs(view: View) -> None:
    def stubborn() -> Judgement:
        try:
            time.sleep(30)
        except Exception:  # noqa: BLE001 - that is the point
            return GOOD
        return GOOD

    verdict, after, _ = ran(view, a_check(stubborn), answering(GOOD, "two"), timeout_s=0.03)
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, Reason.TIMEOUT)
    assert "got: no answer within 0.03 s" in verdict.message
    assert verdict.cost_s >= 0.03
    assert after.status is Status.PASS


FALSE_PASSES = {
    "no coverage": (replace(GOOD, coverage=Coverage()), "passed without covering anything"),
    "only bytes": (replace(GOOD, coverage=Coverage(0, 3, 5, 5)), "passed without covering"),
    "nothing of much": (replace(GOOD, coverage=Coverage(0, 3)), "passed without covering"),
    "NaN measured": (replace(GOOD, measured=math.nan), "a measured value of nan and a bound of 1"),
    "infinity measured": (
        replace(GOOD, measured=math.inf, bound=math.inf),
        "a measured value of inf",
    ),
    "minus infinity": (replace(GOOD, measured=-math.inf), "a measured value of -inf"),
    "NaN as bound": (replace(GOOD, bound=math.nan), "a measured value of 0.5 and a bound of nan"),
    "over the bound": (replace(GOOD, measured=1.5), "passed with 1.5 measured over a bound of 1"),
    "nothing": (None, "the check returned NoneType, not a judgement"),
    "a verdict": (True, "the check returned bool, not a judgement"),
    "a pass with a reason": (
        replace(GOOD, reason=Reason.ERROR),
        "the check answered pass with reason error",
    ),
    "a failure with a reason": (
        replace(BAD, reason=Reason.ERROR),
        "the check answered fail with reason error",
    ),
    "silence without a reason": (
        replace(GOOD, status=Status.NOT_RUN),
        "the check answered not_run with reason None",
    ),
}


@pytest.mark.parametrize("name", FALSE_PASSES)
def test_an_answer_that_cannot_be_taken_at_its_word_is_none(view: View, name: str) -> None:
    answer, fault = FALSE_PASSES[name]
    verdict, c7 = ran(view, answering(answer))
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, Reason.ERROR)
    assert fault in verdict.message
    assert (c7.status, c7.measured, c7.bound) == (Status.FAIL, 1, 0)
    told = parts_of(c7)
    assert told["what"] == "answers of checks cannot be taken at their word"
    assert told["where"] == "one"
    assert fault in told["got"]
    assert told["got"].startswith("one: the check ")
    assert {"expected", "likely cause", "what to do"} <= told.keys()


def test_a_measured_value_that_is_no_number_is_no_pass(view: View) -> None:
    text: Any = "0"
    verdict, _ = ran(view, answering(replace(GOOD, measured=text)))
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, Reason.ERROR)


@pytest.mark.parametrize(
    "answer",
    [
        replace(GOOD, measured=None, bound=None),
        replace(GOOD, bound=None),
        replace(GOOD, measured=1.0, bound=1.0),
        replace(GOOD, coverage=Coverage(1, 3, 0, 10)),
    ],
)
def test_less_than_everything_can_still_be_a_pass(view: View, answer: Judgement) -> None:
    verdict, c7 = ran(view, answering(answer))
    assert (verdict.status, c7.status) == (Status.PASS, Status.PASS)


@pytest.mark.parametrize("measured", [math.nan, math.inf, 0.5, None])
def test_a_failure_may_measure_anything_and_cover_nothing(
    view: View, measured: float | None
) -> None:
    answer = replace(BAD, measured=measured, coverage=Coverage())
    verdict, c7 = ran(view, answering(answer))
    assert (verdict.status, c7.status) == (Status.FAIL, Status.PASS)


def test_all_complaints_are_counted_and_named(view: View) -> None:
    *_, c7 = ran(view, answering(None, "one"), answering(GOOD, "two"), answering(None, "three"))
    told = parts_of(c7)
    assert told["where"] == "one, three"
    assert told["got"].count("not a judgement") == 2
    assert c7.measured == 2


def test_observability_passes_and_says_who_did_not_answer(view: View) -> None:
    *_, c7 = ran(view, answering(GOOD), raising(ValueError(), "two"), answering(BAD, "three"))
    assert (c7.condition, c7.check, c7.status, c7.sync) == ("C7", OBSERVABILITY, Status.PASS, 7)
    assert c7.message == "2 of 3 checks answered, the others say why not"
    assert c7.evidence == (("two", "error"),)
    assert (c7.measured, c7.bound, c7.coverage) == (0, 0, Coverage())
    *_, c7 = ran(view, answering(GOOD))
    assert (c7.message, c7.evidence) == ("1 of 1 checks answered", ())


def test_no_check_is_no_pass(view: View) -> None:
    (c7,) = ran(view)
    assert (c7.status, c7.reason, c7.sync) == (Status.NOT_RUN, Reason.MISSING_INPUT, 7)
    assert (c7.condition, c7.check) == ("C7", OBSERVABILITY)
    assert c7.message == "no check was asked for"


def test_checks_run_in_the_order_of_conditions_and_then_as_given(view: View) -> None:
    given = [("a", "C10"), ("b", "C2"), ("c", "C1"), ("d", "C2"), ("e", "C9")]
    verdicts = ran(view, *(answering(GOOD, name, condition) for name, condition in given))
    assert [verdict.check for verdict in verdicts] == ["c", "b", "d", "e", "a", OBSERVABILITY]


def test_every_verdict_is_told_as_it_comes(view: View) -> None:
    heard: list[Verdict] = []
    seen: list[int] = []

    def judge() -> Judgement:
        seen.append(len(heard))
        return GOOD

    checks = [a_check(judge, name) for name in "abc"]
    verdicts = run_checks(view, checks=iter(checks), on_verdict=heard.append)
    assert heard == verdicts
    assert seen == [0, 1, 2]


def test_the_time_of_a_check_and_its_observations_is_its_cost(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]

    def slow(_: View) -> int:
        now[0] += 3
        return 1

    def judge(slow: int) -> Judgement:
        now[0] += 2
        return GOOD

    monkeypatch.setattr(observing, "OBSERVERS", {"slow": slow})
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    first, second, c7 = ran(view, *(a_check(judge, name, needs=("slow",)) for name in "ab"))
    assert (first.cost_s, second.cost_s, c7.cost_s) == (5, 2, 0)


def test_an_observation_that_failed_is_not_made_again(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def broken(_: View) -> int:
        made.append(1)
        raise Unsupported("it cannot be seen")

    monkeypatch.setattr(observing, "OBSERVERS", {"broken": broken})
    checks = [a_check(lambda broken: GOOD, name, needs=("broken",)) for name in ("one", "two")]
    first, second, _ = ran(view, *checks)
    assert made == [1]
    assert first.reason is second.reason is Reason.UNSUPPORTED


def test_an_observation_that_hung_is_not_waited_for_again(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung: list[int] = []

    def hanging(_: View) -> int:
        hung.append(1)
        time.sleep(30)
        return 1

    monkeypatch.setattr(observing, "OBSERVERS", {"hanging": hanging})
    checks = [a_check(lambda hanging: GOOD, name, needs=("hanging",)) for name in ("one", "two")]
    first, second, _ = ran(view, *checks, timeout_s=0.03)
    assert first.reason is second.reason is Reason.TIMEOUT
    assert hung == [1]


def test_an_unknown_observation_is_an_error_of_the_check(view: View) -> None:
    verdict, _ = ran(view, a_check(lambda nonsense: GOOD, needs=("nonsense",)))
    assert (verdict.reason, "KeyError: 'nonsense'" in verdict.message) == (Reason.ERROR, True)


def test_the_user_can_stop_a_run(view: View) -> None:
    with pytest.raises(KeyboardInterrupt):
        ran(view, raising(KeyboardInterrupt()))


def test_without_a_choice_all_registered_checks_run_but_references(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "OBSERVERS", {})
    verdicts = run_checks(view)
    wanted = {name for name, check in CHECKS.items() if not check.reference}
    assert {verdict.check for verdict in verdicts} == {*wanted, OBSERVABILITY}
    assert any(check.reference for check in CHECKS.values())
    order = [list(CONDITIONS).index(verdict.condition) for verdict in verdicts[:-1]]
    assert order == sorted(order)
