import json

import pytest

from syncguard.campaign import Outcome
from syncguard.campaign.result import is_campaign, validate
from syncguard.campaign.statistics import wilson
from syncguard.report import ExitCode
from tests.campaign.cells import ALARMED, QUIET, a_cell, a_result

FOUND = a_cell("exact-probe")
SURVIVED = a_cell()
LATE = a_cell("exact-probe", at=2)


@pytest.mark.parametrize(
    ("cell", "outcome", "code"),
    [
        (FOUND, Outcome.DETECTED, 0),
        (a_cell("exact-probe", "published-random-probe"), Outcome.DETECTED, 0),
        (SURVIVED, Outcome.SURVIVED, 1),
        (a_cell("published-random-probe"), Outcome.SURVIVED, 1),
        (LATE, Outcome.DELAYED, 1),
        (a_cell(claimed_by=()), Outcome.SURVIVED, 0),
        (a_cell(claimed_by=("ledger",)), Outcome.SURVIVED, 0),  # which does not run here
        (a_cell(claimed_by=("observability",)), Outcome.SURVIVED, 1),
        (a_cell(equivalent="the block is all zero"), Outcome.EQUIVALENT, 0),
        (a_cell(equivalent="sometimes", fired=0, reached=()), Outcome.EQUIVALENT, 0),
        (a_cell(fired=0, reached=()), Outcome.NOT_FIRED, 4),
        (a_cell(error="boom"), Outcome.ERROR, 4),
        (a_cell("weight-bytes", reached=("weight-bytes",)), Outcome.DETECTED, 4),
    ],
)
def test_exit_codes(cell: object, outcome: Outcome, code: int) -> None:
    result = a_result(cell)  # type: ignore[arg-type]
    assert result.cells[0].outcome is outcome
    assert result.exit_code is ExitCode(code)


def test_a_survivor_outweighs_a_defect() -> None:
    assert a_result(SURVIVED, a_cell(fired=0)).exit_code is ExitCode.VIOLATED


def test_a_false_alarm_violates() -> None:
    assert a_result(FOUND, healthy=(QUIET,)).exit_code is ExitCode.PASSED
    assert a_result(FOUND, healthy=(QUIET, ALARMED)).exit_code is ExitCode.VIOLATED


def test_defects_say_why() -> None:
    result = a_result(
        a_cell(fired=0), a_cell(error="boom"), a_cell("weight-bytes", reached=("weight-bytes",))
    )
    assert [why for _, why in result.defects] == [
        "the fault fired on nothing",
        "could not be run: boom",
        "exact-probe claims it and was never reached",
    ]


def test_rates_count_the_cells_that_a_check_claims() -> None:
    cells = [
        FOUND,
        a_cell("weight-bytes", "exact-probe", seed=1),
        SURVIVED,
        a_cell("weight-bytes", fault="other", claimed_by=("weight-bytes",)),
        a_cell(fired=0),
        a_cell(error="boom"),
        a_cell(equivalent="nothing"),
    ]
    rows = {row.check: row for row in a_result(*cells, healthy=(QUIET, ALARMED)).check_rows}
    exact, values = rows["exact-probe"], rows["weight-bytes"]
    assert (exact.claimed, exact.detected, exact.seen, exact.alone) == (3, 2, 2, ("stale",))
    assert (values.claimed, values.detected, values.seen, values.alone) == (1, 1, 2, ("other",))
    assert exact.rate == pytest.approx(2 / 3)
    assert rows["equal-sync"].rate is None
    assert (exact.alarms, exact.runs) == (1, 2)
    assert rows["published-random-probe"].alarms == 1
    assert rows["observability"].condition == "C7"


def test_faults_come_survivors_first() -> None:
    cells = [
        a_cell("exact-probe", fault="found"),
        a_cell(fault="idle", fired=0),
        a_cell("exact-probe", fault="mixed", site="a"),
        a_cell(fault="mixed", site="b"),
        a_cell("exact-probe", fault="slow", at=3),
    ]
    rows = a_result(*cells).fault_rows
    assert [row.fault for row in rows] == ["mixed", "slow", "idle", "found"]
    assert (rows[0].detected, len(rows[0].cells), rows[0].syncs) == (1, 2, 1)
    assert rows[1].syncs == 3


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Wilson (1927) with z = 1.959964, by hand: the centre (k + z2/2) / (n + z2), and so on.
    [
        (0, 0, 0.0, 1.0),
        (10, 10, 0.722467, 1.0),
        (0, 1000, 0.0, 0.003827),
        (5, 10, 0.236593, 0.763407),
    ],
)
def test_wilson_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-6)


def test_the_json_satisfies_its_schema() -> None:
    result = a_result(
        FOUND, SURVIVED, LATE, a_cell(fired=0), healthy=(QUIET, ALARMED), skipped={"x": "no seam"}
    )
    value = json.loads(result.to_json())
    validate(value)
    assert value["schema"] == "syncguard.campaign/1"
    assert value["exit_code"] == 1
    assert value["healthy"]["runs"] == 2
    assert [run["seed"] for run in value["healthy"]["alarms"]] == [1]
    assert value["cells"][0]["syncs_to_detect"] == 1
    assert value["cells"][1]["syncs_to_detect"] is None
    assert is_campaign(result.to_json())


@pytest.mark.parametrize("without", ["cells", "healthy", "exit_code"])
def test_the_schema_demands_what_readers_need(without: str) -> None:
    value = a_result(FOUND).to_dict()
    del value[without]
    with pytest.raises(ValueError, match=f"'{without}' is a required property"):
        validate(value)


def test_the_schema_names_the_place() -> None:
    value = a_result(FOUND).to_dict()
    value["cells"][0]["stage"] = "never"
    with pytest.raises(ValueError, match=r"at \$\.cells\[0\]\.stage: 'never' is not one of"):
        validate(value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "syncguard.report/1"}'])
def test_other_files_are_no_campaigns(text: str) -> None:
    assert not is_campaign(text)
