import re
from dataclasses import replace

import pytest

from syncguard.conditions import CORE_CONDITIONS
from syncguard.observations import StepReport
from syncguard.report import Environment, Report, SyncSummary
from syncguard.reporting.text import plain_text
from syncguard.verdict import Coverage, Reason, Status, Verdict
from tests.reports import ERRED, STALE, a_pass, a_report


def lines(report: Report, strict: bool = False) -> list[str]:
    return plain_text(report, strict).splitlines()


def row(report: Report, condition: str) -> str:
    return next(line for line in lines(report) if line.startswith(f"{condition} "))


def squeezed(line: str) -> str:
    return re.sub(" +", " ", line)


def test_there_is_one_line_a_condition_with_what_the_issue_asks_for() -> None:
    report = a_report(STALE)
    found = [line for line in lines(report) if re.match(r"C\d+ ", line)]
    assert [line.partition(" ")[0] for line in found] == [each.id for each in CORE_CONDITIONS]
    assert squeezed(row(report, "C3")) == ("C3 derived state FAIL 15/15 590/590 kB 65536 0 0.25 s")
    assert "pass" in row(report, "C2")


def test_a_failure_is_told_in_full() -> None:
    text = "\n".join(map(squeezed, lines(a_report(STALE))))
    for said in (
        "FAIL C3 derived state | exact probe | lm_head.weight | sync 2",
        "the serving path computes with old weights",
        "where lm_head.weight [512, 128], rank 0",
        "expected the values of version 2",
        "got those of version 1",
        "likely cause a prepacked copy that was not rebuilt",
        "what to do rebuild it after the last bucket, or restart the engine until it is",
        "measured 65536 (bound 0)",
        "evidence first difference: row 3",
    ):
        assert said in text


def test_failures_come_before_checks_that_did_not_run() -> None:
    text = plain_text(a_report(ERRED, STALE))
    assert text.index("FAIL C3") < text.index("not run C6 output sanity | kl | error | sync 1")


def test_the_same_answer_in_several_syncs_is_told_once() -> None:
    text = plain_text(a_report(ERRED, replace(ERRED, sync=3), replace(ERRED, message="other")))
    assert text.count("ValueError: [1]") == 1
    assert "| syncs 1, 3" in text
    assert "other" in text


def test_an_answer_that_differs_in_numbers_only_tells_the_other_measurements() -> None:
    later = replace(
        STALE, sync=3, measured=512, message=STALE.message.replace("version 1", "version 2")
    )
    text = squeezed(plain_text(a_report(STALE, later)))
    assert text.count("likely cause") == 1
    assert "measured 65536 (bound 0)" in text
    assert "at sync 3 512 (bound 0)" in text
    assert "| syncs 2, 3" in text


def test_another_subject_or_another_cause_is_told_apart() -> None:
    other = replace(STALE, subject="model.norm.weight")
    another = replace(STALE, message=STALE.message.replace("prepacked", "swizzled"))
    assert plain_text(a_report(STALE, other, another)).count("likely cause") == 3


def test_a_check_without_a_message_is_told_of_as_such() -> None:
    assert "(the check gave no message)" in plain_text(a_report(replace(STALE, message="")))


def test_what_does_not_apply_is_not_told_as_a_failure() -> None:
    silent = Verdict("C4", "graphs", Status.NOT_RUN, "no graphs", Reason.NOT_APPLICABLE)
    report = a_report(silent)
    assert "n/a" in row(report, "C4")
    assert "no graphs" not in plain_text(report)
    assert "not covered: C4: none of its checks applies here" in lines(report)


def test_a_silent_condition_shows() -> None:
    report = a_report(without="C5")
    assert squeezed(row(report, "C5")) == "C5 completeness silent - - - - -"
    assert "not covered: C5: no check gave a verdict" in lines(report)
    assert lines(report)[-2:] == [
        "not run  not checked: C5; passed: C1, C2, C3, C4, C6, C7",
        "exit code 3: something could not be checked",
    ]


def test_extensions_stand_apart() -> None:
    found = lines(a_report(a_pass("C8")))
    at = next(n for n, line in enumerate(found) if line.startswith("C8 freshness"))
    assert found[at - 1] == ""
    assert found[at - 2].startswith("C7 ")


@pytest.mark.parametrize(
    ("report", "strict", "closing"),
    [
        (a_report(), False, "exit code 0: all checks passed"),
        (a_report(STALE), False, "exit code 1: a condition is violated"),
        (a_report(ERRED), False, "exit code 3: something could not be checked"),
        (a_report(a_pass("C2", coverage=Coverage(1, 2))), False, "exit code 0: all checks passed"),
        (a_report(a_pass("C2", coverage=Coverage(1, 2))), True, "exit code 3: something could"),
        (replace(a_report(), interrupted=True), False, "exit code 130: interrupted"),
    ],
)
def test_the_last_line_says_what_the_exit_code_means(
    report: Report, strict: bool, closing: str
) -> None:
    assert lines(report, strict)[-1].startswith(closing)


def test_an_interrupted_run_says_so() -> None:
    assert "interrupted; passed: C1" in lines(replace(a_report(), interrupted=True))[-2]
    nothing = Report(interrupted=True, conditions=())
    assert "interrupted; nothing was checked" in lines(nothing)[-2]


def test_syncs_tell_versions_sizes_and_what_the_step_changed() -> None:
    step = StepReport(1e-6, 6.25, 1.0, 0.032, 0.001)
    first = SyncSummary(1, "1", "1", "the learner's weights", 1, 25, 1_234_567, 0.013)
    second = replace(first, number=2, version="2", what="after one optimizer step", step=step)
    third = SyncSummary(3, "3", what="the same weights again", error="RuntimeError: meta device")
    text = " ".join(lines(replace(a_report(), syncs=(first, second, third))))
    assert (
        "sync 1: the learner's weights: 25 tensors, 1.23 MB in 1 bucket, 0.01 s; serves version 1; "
        "checks 0.00 s" in text
    )
    assert (
        "serves version 1, asked for 2; checks 0.00 s; the step (learning rate 1e-06, loss 6.25) "
        "changed" in text
    )
    assert "100% of weights, 3.2% of element bytes, 0.1% of scale bytes" in text
    assert "sync 3: the same weights again: failed: RuntimeError: meta device" in text


def test_the_environment_has_a_line_for_each_side() -> None:
    environment: Environment = {
        "torch": "2",
        "learner": {"torchao": "0.18"},
        "engine": {"a": {"b": "c"}},
    }
    found = [line.split() for line in lines(replace(a_report(), environment=environment))[1:4]]
    assert found == [["run", "torch", "2"], ["learner", "torchao", "0.18"], ["engine", *"abc"]]


def test_notes_are_told() -> None:
    assert "note: no graphs here" in lines(replace(a_report(), notes=("no graphs here",)))
