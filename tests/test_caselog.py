"""The log of cases."""

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from syncguard.caselog import SCHEMA, Case, CaseLog, read_cases
from syncguard.programs import ProgramRun, parse_program, run_program
from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

SMALL = Topology(layers=1, hidden=32, vocab=32, intermediate=32, tied=True)


def case(text: str) -> Case:
    run = ProgramRun(
        make_stub_learner(SMALL, seed=3), make_stub_engine(SMALL, seed=3), vocabulary=32, seed=3
    )
    run_program(run, parse_program(text))
    return Case.of(run, test="by hand", topology=SMALL, seed=3, seconds=0.5)


def test_lines_follow_the_schema_and_are_read_back(tmp_path: Path) -> None:
    written = [case("open; drop 1; last; finish"), case("open 165; last; finish; serve")]
    log = CaseLog(tmp_path / "cases.ndjson")
    for each in written:
        log.write(each)
    schema = json.loads(
        resources.files("syncguard").joinpath("schemas/cases-1.json").read_text("utf-8")
    )
    for line in log.path.read_text().splitlines():
        jsonschema.validate(json.loads(line), schema, jsonschema.Draft202012Validator)
    assert list(read_cases(log.path)) == written
    first = written[0].to_dict()
    assert first["schema"] == SCHEMA == schema["properties"]["schema"]["const"]
    assert first["program"] == ("open", "drop 1", "last", "finish")
    assert first["topology"]["tied"] is True
    assert first["syncs"][0]["illegal"] == ["model.embed_tokens.weight never came"]
    assert "ledger" in first["syncs"][0]["failed"]


def test_a_case_can_be_run_again_from_its_line() -> None:
    first = case("open; send 2; resend 1; last; finish; serve")
    again = Case.from_dict(json.loads(json.dumps(first.to_dict()))).replay()
    assert [sync.failed for sync in again.syncs] == [("ledger",)]
    assert Case.of(again, test="by hand", topology=SMALL, seed=3, seconds=0.5) == first


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"schema": "syncguard.cases/2"}', "expected a line of syncguard.cases/1"),
        ('{"schema": "syncguard.cases/1"}', "'test'"),
        ("no json", "Expecting value"),
    ],
)
def test_a_line_that_is_no_case_is_named(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "cases.ndjson"
    path.write_text(f"{json.dumps(case('open; fail').to_dict())}\n{line}\n")
    with pytest.raises(ValueError, match=f"line 2: .*{told}"):
        list(read_cases(path))
