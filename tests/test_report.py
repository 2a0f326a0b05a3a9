import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

from syncguard.conditions import CORE_CONDITIONS
from syncguard.errors import UsageError
from syncguard.observations import StepReport
from syncguard.report import ExitCode, Report, SyncSummary, exit_code
from syncguard.verdict import Coverage, Reason, Status, Verdict
from tests.reports import ERRED, SCHEMA, STALE, a_pass, a_report, reports

SILENT = Verdict("C4", "graphs", Status.NOT_RUN, "no graphs", Reason.NOT_APPLICABLE)


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@given(reports)
def test_reports_satisfy_the_schema_and_come_back_equal(report: Report) -> None:
    text = report.to_json()
    value = json.loads(text, parse_constant=pytest.fail)  # NaN is no JSON
    Draft202012Validator(SCHEMA).validate(value)
    assert Report.from_json(text) == report


def test_the_schema_describes_every_field_that_is_written() -> None:
    value = replace(a_report(), syncs=(SyncSummary(1, "1", step=StepReport(*[0.0] * 5)),)).to_dict()
    assert value.keys() == SCHEMA["properties"].keys()
    defined = SCHEMA["$defs"]
    assert value["syncs"][0].keys() == defined["sync"]["properties"].keys()
    assert value["syncs"][0]["step"].keys() == defined["step"]["properties"].keys()
    verdict = value["verdicts"][0]
    assert verdict.keys() == defined["verdict"]["properties"].keys()
    described = defined["verdict"]["properties"]["coverage"]["properties"]
    assert verdict["coverage"].keys() == described.keys()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32(math.nan)])
def test_numbers_that_are_not_finite_are_strings_and_come_back(value: float) -> None:
    report = a_report(replace(STALE, measured=value, cost_s=value))
    text = report.to_json()
    verdict = json.loads(text, parse_constant=pytest.fail)["verdicts"][-1]
    assert verdict["measured"] == str(float(value))
    back = Report.from_json(text).verdicts[-1].measured
    assert back is not None
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_numpy_scalars_are_written_as_numbers() -> None:
    found = a_pass(
        measured=np.float32(0.5),
        coverage=Coverage(np.int64(1), np.int64(1)),  # type: ignore[arg-type]
    )
    assert json.loads(a_report(found).to_json())["verdicts"][-1]["measured"] == 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other/1"}, r"not a syncguard.report/1: at \$.schema: 'syncguard.report/1'"),
        ({"status": "good"}, r"at \$.status: 'good' is not one of"),
        ({"environment": {"torch": 2}}, r"at \$.environment.torch"),
        ({"verdicts": [{}]}, r"at \$.verdicts\[0\]: 'condition' is a required property"),
        ({"syncs": 3}, r"at \$.syncs: 3 is not of type 'array'"),
    ],
)
def test_what_is_no_report_is_refused_and_the_place_named(
    change: dict[str, object], said: str
) -> None:
    text = json.dumps({**a_report().to_dict(), **change})
    with pytest.raises(ValueError, match=said):
        Report.from_json(text)


@pytest.mark.parametrize(("status", "reason"), [("pass", "error"), ("not_run", None)])
def test_the_schema_ties_reason_to_status(status: str, reason: str | None) -> None:
    value = a_report().to_dict()
    value["verdicts"][0] |= {"status": status, "reason": reason}
    assert not Draft202012Validator(SCHEMA).is_valid(value)


@pytest.mark.parametrize(
    ("report", "code", "strict_code"),
    [
        (a_report(), 0, 0),
        (a_report(STALE), 1, 1),
        (a_report(STALE, ERRED), 1, 1),
        (a_report(ERRED), 3, 3),
        (a_report(SILENT), 0, 3),
        (a_report(a_pass("C4"), SILENT), 0, 0),
        (a_report(a_pass("C2", coverage=Coverage(14, 15))), 0, 3),
        (a_report(a_pass("C2", coverage=Coverage(15, 15, 1, 2))), 0, 3),
        (a_report(without="C5"), 3, 3),
        (Report(), 3, 3),
        (replace(a_report(), interrupted=True), 130, 130),
        (replace(a_report(STALE), interrupted=True), 130, 130),
        (replace(a_report(), syncs=(SyncSummary(1, "1", error="lost"),)), 3, 3),
    ],
)
def test_exit_codes(report: Report, code: int, strict_code: int) -> None:
    assert exit_code(report) == code
    assert exit_code(report, strict=True) == strict_code


def test_every_exit_code_has_a_meaning() -> None:
    assert {code.value for code in ExitCode} == {0, 1, 2, 3, 4, 130}
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)


def test_an_interrupted_report_that_found_a_failure_still_says_fail() -> None:
    assert replace(a_report(STALE), interrupted=True).status is Status.FAIL
    assert replace(a_report(), interrupted=True).status is Status.NOT_RUN


def test_summaries_cover_the_core_conditions_and_extensions_with_a_verdict() -> None:
    report = a_report(a_pass("C8"), without="C2")
    assert [summary.condition.id for summary in report.summaries] == [
        *(condition.id for condition in CORE_CONDITIONS),
        "C8",
    ]
    silent = report.summaries[1]
    assert silent.telling is None
    assert silent.gap == "no check gave a verdict"


@pytest.mark.parametrize("earlier", [None, "", "report"])
def test_write_makes_or_replaces_a_report(tmp_path: Path, earlier: str | None) -> None:
    path = tmp_path / "report.json"
    if earlier is not None:
        path.write_text(earlier and a_report().to_json())
    a_report(STALE).write(path)
    assert Report.from_json(path.read_text()) == a_report(STALE)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("foreign", ["{}", "thesis", '{"schema": "other"}', "[1]"])
def test_write_refuses_to_replace_anything_else(tmp_path: Path, foreign: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(foreign)
    with pytest.raises(UsageError, match=r"will not overwrite .*not written by syncguard"):
        a_report().write(path)
    assert path.read_text() == foreign
