"""A survey that is stopped keeps what it has found; wrong use of it is told."""

from collections.abc import Iterator
from typing import Any

import pytest

from syncguard.report import ExitCode
from syncguard.survey import SurveyCell, SurveyOptions, cells_of, run_survey
from syncguard.survey import survey as running
from syncguard.verdict import Status
from tests.commands import Run

CELLS = [SurveyCell("stub", f"stub-{name}", "mxfp8", "") for name in ("dense", "moe")]


def test_an_interrupted_survey_tells_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(cells: Any, *_: Any, **__: Any) -> Iterator[Any]:
        yield cells[0], {"error": "", "conditions": {}, "seconds": 1.0, "peak_mib": 2.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_jobs", stopped)
    result = run_survey(CELLS, SurveyOptions())
    assert result.exit_code is ExitCode.INTERRUPTED
    first, second = result.cells
    assert (first.seconds, first.error) == (1.0, "")
    assert (second.status, second.error) == (Status.NOT_RUN, "the survey was interrupted")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "nope", "--cells"], "--engine 'nope' is not one of sglang, vllm"),
        (["--cells", "--json", "x.json"], "--cells runs nothing that --json or --html could write"),
        (["--only", "nothing-such"], "--only 'nothing-such' matches no cell"),
    ],
)
def test_wrong_usage_is_text_and_exits_with_2(run: Run, arguments: list[str], said: str) -> None:
    ran = run("survey", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_the_name_of_a_cell_means_that_cell_alone() -> None:
    cells = cells_of(["vllm"])
    (one,) = SurveyOptions(only=("vllm/qwen3/none/transfer",)).chosen(cells)
    assert one.name == "vllm/qwen3/none/transfer"
    both = SurveyOptions(only=("vllm/qwen3/none/transfer", "qwen3/none/reload")).chosen(cells)
    assert [cell.name for cell in both] == [
        "vllm/qwen3/none/transfer",
        "vllm/qwen3/none/reload",
    ]
