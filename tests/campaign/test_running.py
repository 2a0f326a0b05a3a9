import shlex

import pytest

from syncguard.campaign import Cell, CellSettings, CellSpec, Outcome, run_cell
from syncguard.checks import CHECKS
from syncguard.errors import EngineLost
from syncguard.profiles import PROFILES
from tests.campaign.conftest import Plant
from tests.campaign.planted import IDLE, MUTE, SECOND, STALE, TAME

SITE = "model.layers.1.mlp.down_proj"
QUICK = (
    "weight-bytes", "exact-probe", "re-derivation", "equal-sync", "published-random-probe",
    "served-version",
)  # fmt: skip


def cell(
    fault: str, site: str, stage: str = "load", seed: int = 0, checks: tuple[str, ...] = QUICK
) -> Cell:
    return run_cell(CellSpec(fault, site, stage, "stub", seed), CellSettings(checks, 60))


def test_a_fault_is_detected_at_the_first_sync_with_evidence(plant: Plant) -> None:
    plant(STALE)
    found = cell(STALE, SITE)
    assert found.outcome is Outcome.DETECTED
    assert (found.detected, found.syncs_to_detect, found.fired) == (True, 1, 1)
    assert {"exact-probe", "re-derivation"} <= set(found.detected_by)
    assert f"{SITE}.weight" in found.evidence["exact-probe"]
    assert found.evidence.keys() == found.seen_at.keys()
    assert (found.breaks, found.claimed_by) == (("C3",), ("exact-probe", "re-derivation"))
    assert found.error == ""
    assert found.cost_s > 0


def test_after_a_small_step_the_published_tolerance_is_blind(plant: Plant) -> None:
    plant(STALE)
    loaded, late = cell(STALE, SITE), cell(STALE, SITE, "late")
    assert "published-random-probe" in loaded.seen_at
    assert late.outcome is Outcome.DETECTED
    assert {"exact-probe", "re-derivation"} <= set(late.detected_by)
    assert "published-random-probe" in late.reached
    assert "published-random-probe" not in late.seen_at


def test_a_reference_detects_nothing(plant: Plant) -> None:
    plant(STALE)
    found = cell(STALE, SITE, checks=("published-random-probe",))
    assert found.outcome is Outcome.SURVIVED
    assert found.seen_at == {"published-random-probe": 1}
    assert found.detected_by == ()


def test_a_fault_that_no_check_sees_survives(plant: Plant) -> None:
    plant(TAME)
    found = cell(TAME, "engine")
    assert found.outcome is Outcome.SURVIVED
    assert found.fired == 3  # once a sync: all three were run
    assert (found.detected, found.syncs_to_detect) == (False, None)
    assert {"weight-bytes", "equal-sync", "observability"} <= set(found.reached)


def test_a_fault_that_never_fires_is_told(plant: Plant) -> None:
    plant(IDLE)
    found = cell(IDLE, "engine")
    assert found.outcome is Outcome.NOT_FIRED
    assert found.reached == ()


def test_syncs_are_counted_from_the_first_firing(plant: Plant) -> None:
    plant(SECOND)
    found = cell(SECOND, "commit")
    assert found.outcome is Outcome.DELAYED
    assert found.syncs_to_detect == 2
    assert found.detected_by == ("served-version",)
    assert not found.detected


def test_silence_counts_as_detection_of_what_breaks_c7(plant: Plant) -> None:
    plant(MUTE)
    found = cell(MUTE, "probe_exact")
    assert found.outcome is Outcome.DETECTED
    assert found.detected_by == ("observability",)
    assert ": not_run: error: the check gave no answer" in found.evidence["observability"]
    assert "RuntimeError: no answer" in found.not_run["exact-probe"]


def test_only_the_asked_checks_run(plant: Plant) -> None:
    plant(STALE)
    found = cell(STALE, SITE, checks=("weight-bytes", "exact-probe"))
    assert set(found.reached) == {"weight-bytes", "exact-probe", "observability"}
    assert found.detected_by == ("exact-probe",)


def test_what_goes_wrong_outside_a_check_is_an_error(plant: Plant) -> None:
    plant(STALE)
    found = cell(STALE, "nowhere")
    assert found.outcome is Outcome.ERROR
    assert "has no site 'nowhere'" in found.error


def test_an_unhealthy_start_proves_nothing(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    from syncguard.stubs import StubEngine

    plant(STALE)
    monkeypatch.setattr(StubEngine, "commit", lambda engine, version: None)
    found = cell(STALE, SITE, "late")
    assert found.outcome is Outcome.ERROR
    assert "before the fault changed anything served-version gave fail" in found.error


def test_an_engine_that_ends_before_the_fault_fires_is_told(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from syncguard.stubs import StubEngine

    def finish(engine: StubEngine) -> None:
        raise EngineLost("the engine is gone: its process was killed by SIGKILL")

    plant(IDLE)
    monkeypatch.setattr(StubEngine, "finish", finish)
    found = cell(IDLE, "engine", "load")
    assert (found.outcome, found.fired) == (Outcome.ERROR, 0)
    assert "its process was killed by SIGKILL" in found.error


def test_the_replay_line_repeats_the_cell(plant: Plant) -> None:
    plant(STALE)
    spec = CellSpec(STALE, "a b.weight[q]", "late", "stub", 7)
    found = run_cell(spec, CellSettings(("exact-probe",), options=("--checks", "exact-*")))
    assert found.replay == (
        f"syncguard campaign --engine stub --faults {STALE} --sites 'a b.weight[q]' "
        "--stages late --seeds-from 7 --seeds 1 --healthy 0 --checks 'exact-*'"
    )
    assert "a b.weight[q]" in shlex.split(found.replay)


def test_a_cell_survives_json(plant: Plant) -> None:
    import json

    plant(STALE)
    found = cell(STALE, SITE)
    assert Cell.from_dict(json.loads(json.dumps(found.to_dict()))).to_dict() == found.to_dict()


def test_every_check_runs_by_default_references_included(plant: Plant) -> None:
    plant(TAME)
    found = cell(TAME, "engine", checks=())
    assert {name for name, check in CHECKS.items() if check.reference} <= set(found.reached)
    assert len(found.reached) > len(CHECKS) / 2
    assert found.outcome is Outcome.SURVIVED


def test_in_production_a_bit_of_an_opaque_copy_is_found_within_the_rotation() -> None:
    """No bytes can be compared, and rounding hides the bit in any sum: its turn must come."""
    spec = CellSpec("packed-element-bit", "lm_head.packed", "load", "stub", 0)
    checks = PROFILES["production"].checks or ()
    found = run_cell(spec, CellSettings(checks, 60, ("--profile", "production"), "production"))
    assert found.claimed_by == ("block-probe",)
    assert found.detected_by == ("block-probe",)
    assert found.outcome is Outcome.DETECTED
    assert 1 < (found.syncs_to_detect or 0) <= found.within == 64
    assert found.replay.endswith("--profile production")
