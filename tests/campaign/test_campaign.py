from dataclasses import replace
from pathlib import Path

import pytest

from syncguard.campaign import (
    CampaignOptions,
    CampaignResult,
    Cell,
    HealthyRun,
    Outcome,
    run_campaign,
)
from syncguard.campaign.session import Session
from syncguard.errors import UsageError
from tests.campaign.conftest import Plant
from tests.campaign.planted import CRASH, HANG, IDLE, MUTE, STALE, TAME

SITE = "model.layers.1.mlp.down_proj"
CHECKS = ("weight-bytes", "exact-probe", "random-probe", "re-derivation", "session")


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.total = -1
        self.items: list[tuple[Cell | HealthyRun, bool]] = []

    def planned(self, total: int) -> None:
        self.total = total

    def finished(self, item: Cell | HealthyRun, *, resumed: bool) -> None:
        self.items.append((item, resumed))

    def waiting(self) -> None:
        """Not kept."""


def without_costs(result: CampaignResult) -> list[object]:
    return [
        [replace(cell, cost_s=0) for cell in result.cells],
        [replace(run, cost_s=0) for run in result.healthy],
        result.check_rows,
    ]


def test_a_campaign_says_what_is_found_and_what_not(plant: Plant) -> None:
    plant(STALE, TAME, IDLE)
    heard = Heard()
    options = CampaignOptions(sites=(SITE, "engine"), checks=CHECKS, healthy=1, workers=2)
    result = run_campaign(options, heard)
    assert [(cell.spec.fault, cell.spec.stage, cell.outcome) for cell in result.cells] == [
        (STALE, "load", Outcome.DETECTED),
        (STALE, "late", Outcome.DETECTED),
        (TAME, "load", Outcome.SURVIVED),
        (IDLE, "load", Outcome.NOT_FIRED),
    ]
    assert not result.alarms
    assert result.exit_code == 1
    assert heard.total == len(heard.items) == 5
    assert not any(resumed for _, resumed in heard.items)
    assert result.environment["torch"]


@pytest.mark.slow
def test_workers_and_order_change_nothing(plant: Plant) -> None:
    plant(STALE, MUTE)
    options = CampaignOptions(sites=(SITE, "probe_exact"), checks=CHECKS, healthy=1)
    one, two = (run_campaign(replace(options, workers=workers)) for workers in (1, 3))
    assert without_costs(one) == without_costs(two)


def test_seeds_differ(plant: Plant) -> None:
    plant(STALE)
    options = CampaignOptions(sites=(SITE,), stages=("load",), checks=CHECKS, seeds=2, workers=2)
    one, two = run_campaign(options).cells
    assert one.detected
    assert two.detected
    assert one.evidence["random-probe"] != two.evidence["random-probe"]


def test_a_process_that_dies_or_hangs_costs_its_cell(plant: Plant) -> None:
    plant(CRASH, MUTE)
    result = run_campaign(CampaignOptions(checks=CHECKS, workers=2))
    crash, mute = result.cells
    assert crash.outcome is Outcome.ERROR
    assert crash.error == "its process ended with exit code 9; it wrote: about to die"
    assert mute.outcome is Outcome.DETECTED
    assert result.exit_code == 4
    plant(HANG)
    (hang,) = run_campaign(CampaignOptions(workers=1, timeout_s=0.5)).cells
    assert hang.outcome is Outcome.ERROR
    assert hang.error == "no result within 0.5 s"
    assert (hang.breaks, hang.claimed_by) == (("C5",), ("session",))
    assert f"--faults {HANG}" in hang.replay


def test_what_an_earlier_try_has_finished_is_not_run_again(plant: Plant, tmp_path: Path) -> None:
    plant(MUTE)
    options = CampaignOptions(checks=CHECKS, seeds=2, workers=1)
    path = tmp_path / "session.ndjson"
    stopped = Heard()

    def stop(item: Cell | HealthyRun, *, resumed: bool) -> None:
        raise KeyboardInterrupt

    stopped.finished = stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run_campaign(options, stopped, session=path)
    heard = Heard()
    result = run_campaign(options, heard, session=path)
    assert [resumed for _, resumed in heard.items] == [True, False]
    assert result.resumed == 1
    assert not path.exists()
    assert without_costs(result) == without_costs(run_campaign(options))


def test_fresh_runs_all_again(plant: Plant, tmp_path: Path) -> None:
    plant(MUTE)
    options = CampaignOptions(checks=CHECKS, workers=1)
    path = tmp_path / "session.ndjson"
    session = Session(path, options)
    session.keep("cell stub planted-mute@probe_exact load 0", {"no": "cell"})
    session.close(complete=False)
    heard = Heard()
    run_campaign(options, heard, session=path, fresh=True)
    assert [resumed for _, resumed in heard.items] == [False]


def test_without_scipy_it_says_so_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("syncguard.campaign.campaign.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'syncguard\[campaign\]'"):
        run_campaign(CampaignOptions())


def test_threads_are_given_back(plant: Plant) -> None:
    import torch

    plant(MUTE)
    before = torch.get_num_threads()
    run_campaign(CampaignOptions(checks=CHECKS, workers=1))
    assert torch.get_num_threads() == before
