import io

import pytest
from rich.console import Console

from syncguard.campaign.result import CampaignResult
from syncguard.reporting.campaign_progress import CampaignProgress
from syncguard.reporting.campaign_table import percent_interval, render_campaign
from tests.campaign.cells import ALARMED, QUIET, a_cell, a_result


def text(result: CampaignResult, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(render_campaign(result), highlight=False, crop=False)
    return out.getvalue()


def test_survivors_come_first_with_a_line_to_copy() -> None:
    long = "syncguard campaign " + "--faults x " * 20 + "--end"
    told = text(a_result(a_cell("exact-probe"), a_cell(fault="worse", replay=long)))
    lines = told.splitlines()
    assert lines[0].startswith("syncguard ")
    first = next(line for line in lines if "SURVIVED" in line)
    assert first.startswith("SURVIVED C3 worse | lm_head | load | seed 0")
    assert f"  replay: {long}" in lines
    assert "claimed by exact-probe" in told
    assert told.index("SURVIVED C3 worse") < told.index("seen by")
    assert lines[-1] == (
        "exit code 1: a claimed fault survived the first sync, or a healthy run alarmed"
    )


def test_a_late_detection_says_when_and_by_whom() -> None:
    assert "only at the second sync, by exact-probe" in text(a_result(a_cell("exact-probe", at=2)))


def test_what_a_silent_check_said_is_told() -> None:
    told = text(a_result(a_cell(not_run={"exact-probe": "timeout: no answer\n  got: nothing"})))
    assert "exact-probe: timeout: no answer got: nothing" in told


def test_each_fault_and_check_has_a_line() -> None:
    told = text(
        a_result(
            a_cell("exact-probe", "weight-bytes", "published-random-probe", site="a"),
            a_cell("exact-probe", site="b"),
            healthy=(QUIET, ALARMED),
        ),
        width=100,
    )
    fault = next(line for line in told.splitlines() if line.startswith("stale"))
    assert fault.split(maxsplit=5) == [
        "stale", "C3", "found", "2/2", "1", "exact-probe +2",
    ]  # fmt: skip
    check = next(line for line in told.splitlines() if line.startswith("exact-probe"))
    assert " ".join(check.split()) == "exact-probe C3 2 100% 34.2-100 2 1 1/2 9.4-90.6"
    none = next(line for line in told.splitlines() if line.startswith("equal-sync"))
    assert " ".join(none.split()).startswith("equal-sync C3 0 - -")


def test_false_alarms_are_listed() -> None:
    told = text(a_result(a_cell("exact-probe"), healthy=(QUIET, ALARMED)))
    assert "FALSE ALARM Topology(ranks=2)" in told
    assert "exact-probe after sync 2: the kernels of 1 layers <differ>" in told
    assert "  replay: syncguard campaign --no-faults --seeds-from 1\n" in told
    assert "healthy runs: 2, false alarms: 1 (95 %: 9.4-90.6 %)" in told


def test_cells_that_prove_nothing_are_listed() -> None:
    told = text(a_result(a_cell(fired=0)))
    assert "PROVES NOTHING stale | lm_head | load | seed 0: the fault fired on nothing" in told
    assert told.splitlines()[-1] == "exit code 4: cells that prove nothing: see above"


def test_what_was_skipped_or_resumed_is_told() -> None:
    told = text(a_result(a_cell("exact-probe"), skipped={"other": "no seam"}, resumed=3), 160)
    assert "skipped: other: no seam" in told
    assert "3 taken from an earlier try" in told


def test_a_survivor_that_no_check_claims_is_no_broken_promise() -> None:
    told = text(a_result(a_cell(claimed_by=())))
    assert "unclaimed" in told
    assert "SURVIVED" not in told
    assert told.splitlines()[-1].startswith("exit code 0: ")


def test_a_hundred_survivors_do_not_hide_the_tables() -> None:
    told = text(a_result(*(a_cell(seed=seed) for seed in range(100))))
    assert told.count("SURVIVED C3") == 20
    assert "and 80 more: --json and --html hold them all" in told


@pytest.mark.parametrize(
    ("interval", "shown"),
    [((0.0, 1.0), "0-100"), ((0.98238, 1.0), "98.2-100"), ((0.0, 0.0038269), "0-0.4")],
)
def test_intervals_are_rounded_outwards(interval: tuple[float, float], shown: str) -> None:
    assert percent_interval(interval) == shown


def heard(console: Console) -> None:
    progress = CampaignProgress(console)
    progress.planned(5)
    for cell in (a_cell("exact-probe"), a_cell(), a_cell(fired=0)):
        progress.finished(cell, resumed=False)
    for run in (QUIET, ALARMED):
        progress.finished(run, resumed=True)
    progress.waiting()
    progress.close()


def test_progress_is_silent_where_no_one_looks() -> None:
    out = io.StringIO()
    heard(Console(file=out))
    assert out.getvalue() == ""


def test_progress_counts_survivors_alarms_and_defects() -> None:
    out = io.StringIO()
    heard(Console(file=out, force_terminal=True, width=100, color_system=None))
    assert "survivors 1, false alarms 1, defects 1" in out.getvalue()
    assert "5/5" in out.getvalue()
