"""A cell as the options of ``syncguard smoke``."""

import pytest

from syncguard.errors import SyncguardError
from syncguard.survey.cell import SurveyCell
from syncguard.survey.spawning import flags_of, smoke_in_new_process


def test_cell_becomes_options() -> None:
    cell = SurveyCell("vllm", "tiny-qwen3", "none", "reload", "tp2", settings={"ranks": 2})
    assert flags_of(cell) == [
        *("--engine", "vllm", "--model", "tiny-qwen3", "--quantization", "none"),
        *("--path", "reload", "--tp", "2"),
    ]
    compiled = SurveyCell("vllm", "tiny-qwen3", "none", "reload", compiled="compile")
    assert flags_of(compiled)[-3:] == ["--process", "in", "--compile"]
    folded = SurveyCell(
        *("vllm", "tiny-qwen3", "none", "transfer", "own", "compile"), settings={"folded": True}
    )
    assert flags_of(folded)[-4:] == ["--process", "own", "--compile", "--fold"]
    drafted = SurveyCell("vllm", "tiny-qwen3", "none", "reload", settings={"draft": "tiny-llama"})
    assert flags_of(drafted)[-4:-2] == ["--draft", "tiny-llama"]


def test_a_run_without_a_report_is_an_error_with_its_last_words() -> None:
    cell = SurveyCell("vllm", "no-such-model", "none", "reload")
    with pytest.raises(SyncguardError, match=r"(?s)smoke ended with 2: .*no-such-model"):
        smoke_in_new_process(cell)


@pytest.mark.slow
def test_a_report_comes_back() -> None:
    report = smoke_in_new_process(SurveyCell("stub", "stub-dense", "mxfp8", ""))
    assert {verdict.condition for verdict in report.verdicts} >= {"C1", "C7"}
