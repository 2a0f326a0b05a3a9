"""The tables of cells, and how a part of them is chosen."""

import pytest

from syncguard.conditions import CONDITIONS
from syncguard.errors import UsageError
from syncguard.survey import TABLES, SurveyCell, SurveyOptions, cells_of
from syncguard.survey.findings import FINDINGS
from syncguard.survey.scenarios import SCENARIOS

CELLS = cells_of()


def names(*only: str) -> list[str]:
    return [cell.name for cell in SurveyOptions(only=only).chosen(CELLS)]


def test_no_two_cells_have_a_name() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS) > 35


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cell_names_what_there_is(cell: SurveyCell) -> None:
    assert cell.engine in TABLES
    assert cell.scenario in SCENARIOS
    assert not cell.finding or cell.finding in FINDINGS
    assert not (cell.core and cell.missing)


def test_a_usual_process_is_not_told() -> None:
    cell = SurveyCell("vllm", "tiny-qwen3", "mxfp8", "reload")
    assert cell.name == "vllm/qwen3/mxfp8/reload"
    other = SurveyCell("vllm", "dense", "none", "transfer", "tp2", "compile", "special")
    assert other.name == "vllm/dense/none/transfer/tp2/compile+special"


def test_words_are_parts_of_names_or_patterns() -> None:
    assert names() == [cell.name for cell in CELLS]
    moe = names("moe")
    assert moe
    assert all("moe" in name for name in moe)
    assert names("vllm/qwen3/*/reload") == [
        f"vllm/qwen3/{weights}/reload"
        for weights in ("none", "mxfp8", "modelopt-mxfp8", "int8-w8a8")
    ]
    assert set(names("moe", "tied")) == {*moe, *names("tied")}
    assert len(names("core")) == sum(cell.core for cell in CELLS)


def test_a_word_that_matches_nothing_is_refused() -> None:
    text = r"--only 'relaod' matches no cell; did you mean 'reload'\?\n  expected: a part of"
    with pytest.raises(UsageError, match=text):
        names("moe", "relaod")


@pytest.mark.parametrize("options", [{"workers": -1}, {"timeout_s": 0.0}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="--workers must be at least 0"):
        SurveyOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("finding", FINDINGS.values(), ids=lambda finding: finding.name)
def test_finding_violates_conditions_and_has_a_script(finding: object) -> None:
    from syncguard.survey.findings import Finding

    assert isinstance(finding, Finding)
    assert {*finding.subjects, *finding.follows} <= CONDITIONS.keys()
    compile(finding.script, finding.name, "exec")
    assert "syncguard" not in finding.script
    assert "Exits with 1" in finding.script
