"""Cells by hand."""

from typing import Any

from syncguard.campaign.cell import Cell, CellSpec
from syncguard.campaign.healthy import Alarm, HealthyRun, HealthySpec
from syncguard.campaign.result import CampaignResult

__all__ = ["ALARMED", "QUIET", "a_cell", "a_result"]

CHECKS = ("weight-bytes", "exact-probe", "equal-sync", "published-random-probe")

QUIET = HealthyRun(HealthySpec("stub", 0), "Topology()", replay="syncguard campaign --no-faults")
ALARMED = HealthyRun(
    HealthySpec("stub", 1),
    "Topology(ranks=2)",
    (Alarm("exact-probe", 2, "fail", "the kernels of 1 layers <differ>"),),
    ("published-random-probe",),
    replay="syncguard campaign --no-faults --seeds-from 1",
)


def a_cell(*seen: str, fault: str = "stale", at: int = 1, **fields: Any) -> Cell:
    """A cell of a fault of C3 that the exact probe claims, and that these checks see."""
    references = ("published-random-probe",)
    values: dict[str, Any] = {
        "breaks": ("C3",),
        "claimed_by": ("exact-probe",),
        "fired": 2,
        "seen_at": dict.fromkeys(seen, at),
        "detected_by": tuple(name for name in seen if name not in references),
        "evidence": dict.fromkeys(seen, "row 3 <differs> & is old"),
        "reached": ("weight-bytes", "exact-probe", "published-random-probe", "observability"),
        "replay": f"syncguard campaign --faults {fault}",
        "cost_s": 0.25,
    }
    spec = CellSpec(fault, fields.pop("site", "lm_head"), "load", "stub", fields.pop("seed", 0))
    return Cell(spec, **{**values, **fields})


def a_result(*cells: Cell, healthy: tuple[HealthyRun, ...] = (), **fields: Any) -> CampaignResult:
    environment = {"syncguard": "1", "torch": "2"}
    return CampaignResult("stub", CHECKS, cells, healthy=healthy, environment=environment, **fields)
