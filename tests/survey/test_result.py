"""What a survey's result says of its cells."""

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from syncguard.conditions import CONDITIONS
from syncguard.errors import UsageError
from syncguard.report import ExitCode
from syncguard.reporting.survey_html import survey_page, write_survey_page
from syncguard.reporting.survey_table import render_survey
from syncguard.survey import CellResult, SurveyCell, SurveyResult, cells_of
from syncguard.survey.repro import script_of
from syncguard.survey.result import Told
from syncguard.verdict import Status

HEAD = Told(Status.FAIL, ("lm_head.weight",), "exact-probe: the head is <stale>\n  where: here")
NOT_APPLICABLE = Told(Status.NOT_RUN, text="does not apply", applicable=False)
OPEN = Told(Status.NOT_RUN, text="too late")
TIED = SurveyCell("vllm", "tiny-qwen3-tied", "none", "reload", finding="vllm_tied_head")


def result(cell: SurveyCell = TIED, /, **told: Told) -> CellResult:
    passing = dict.fromkeys(CONDITIONS, Told(Status.PASS))
    return CellResult(cell, passing | told, 2.5, 700.0)


def survey(*cells: CellResult) -> SurveyResult:
    return SurveyResult(cells, 9.0, {"syncguard": "0", "torch": "2"})


@pytest.mark.parametrize(
    ("told", "status", "known"),
    [
        ({}, Status.PASS, False),
        ({"C12": NOT_APPLICABLE, "C9": OPEN}, Status.PASS, False),
        ({"C3": OPEN}, Status.NOT_RUN, False),
        ({"C3": HEAD}, Status.FAIL, True),
        ({"C3": HEAD, "C6": Told(Status.FAIL, ("anything",))}, Status.FAIL, True),
        ({"C6": Told(Status.FAIL)}, Status.FAIL, False),
        ({"C3": HEAD, "C5": Told(Status.FAIL)}, Status.FAIL, False),
        ({"C3": Told(Status.FAIL, ("rank1:lm_head", "lm_head.weight"))}, Status.FAIL, True),
        ({"C3": Told(Status.FAIL, ("lm_head.weight", "model.norm.weight"))}, Status.FAIL, False),
    ],
)
def test_cell_is_as_bad_as_its_conditions(
    told: dict[str, Told], status: Status, known: bool
) -> None:
    cell = result(**told)
    assert (cell.status, cell.known) == (status, known)


def test_a_note_is_told_with_the_result() -> None:
    noted = survey(result(replace(TIED, note="it <frees> nothing")))
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render_survey(noted))
    assert "it <frees> nothing" in capture.get()
    assert "it &lt;frees&gt; nothing" in survey_page(noted)
    assert json.loads(noted.to_json())["cells"][0]["cell"]["note"] == "it <frees> nothing"
    with console.capture() as capture:
        console.print(render_survey(survey(result())))
    assert "note" not in capture.get()


def test_an_error_is_never_a_pass() -> None:
    cell = CellResult(TIED, dict.fromkeys(CONDITIONS, NOT_APPLICABLE), 1.0, error="it died")
    assert cell.status is Status.NOT_RUN


def test_exit_code_tells_the_worst() -> None:
    good, open_, bad = result(), result(C1=OPEN), result(C3=HEAD)
    assert survey(good).exit_code is ExitCode.PASSED
    assert survey(good, open_).exit_code is ExitCode.NOT_CHECKED
    assert survey(good, open_, bad).exit_code is ExitCode.VIOLATED


def test_json_is_as_the_schema_says(tmp_path: Path) -> None:
    path = tmp_path / "survey.json"
    cell = SurveyCell("vllm", "tiny-qwen3", "mxfp8", "reload", settings={"exclude": ("a",)})
    survey(result(), result(cell, C3=HEAD)).write(path)
    schema = resources.files("syncguard").joinpath("schemas/survey-1.json").read_text("utf-8")
    value = json.loads(path.read_text())
    jsonschema.validate(value, json.loads(schema))
    told = value["cells"][1]
    assert (told["name"], told["status"], told["known"]) == (cell.name, "fail", False)
    assert told["conditions"]["C3"]["subjects"] == ["lm_head.weight"]
    survey(result()).write(path)
    path.write_text("mine")
    with pytest.raises(UsageError, match="will not overwrite"):
        survey(result()).write(path)


def test_text_names_what_fails_and_why_the_rest_is_open() -> None:
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    unknown = SurveyCell("vllm", "tiny-llama", "none", "reload")
    missing = SurveyCell("vllm", "tiny-llama", "int8", "reload")
    died = CellResult(missing, dict.fromkeys(CONDITIONS, OPEN), 0.0, error="no such thing")
    console.print(render_survey(survey(result(C3=HEAD), result(unknown, C3=HEAD), died)))
    text = console.export_text()
    assert "C3 lm_head.weight: exact-probe: the head is <stale>" in text
    assert "--repro vllm/qwen3-tied/none/reload" in " ".join(text.split())
    assert "not known: decide with another instrument" in text
    assert "not run vllm/llama/int8/reload\n  no such thing" in text
    assert "3 cells in 9 s: 0 pass, 2 fail (1 of them by known findings), 1 not run" in text
    assert "exit code 1: a condition is violated in some cell" in text


def test_page_escapes_what_it_shows(tmp_path: Path) -> None:
    page = survey_page(survey(result(C3=HEAD)))
    assert "the head is &lt;stale&gt;" in page
    assert "<stale>" not in page
    write_survey_page(survey(result()), tmp_path / "page.html")
    write_survey_page(survey(result()), tmp_path / "page.html")


def test_script_is_found_by_cell_and_by_finding() -> None:
    cells = cells_of()
    by_cell = script_of("vllm/qwen3-tied/none/reload", cells)
    assert by_cell == script_of("vllm_tied_head", cells)
    with pytest.raises(UsageError) as wrong:
        script_of("vllm/qwen3-moe/non/reload", cells)
    told = str(wrong.value)
    assert "is neither a cell nor a finding; did you mean 'vllm/qwen3-moe/none/reload'" in told
    assert "expected: a finding: sglang_disk_rollback, " in told
    with pytest.raises(UsageError, match="nothing is known to fail in this cell"):
        script_of("vllm/qwen3/none/reload", cells)
