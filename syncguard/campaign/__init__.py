"""Campaigns: faults x sites x checks, the detection matrix that shows what the checks can see."""

from syncguard.campaign.campaign import CampaignListener, run_campaign
from syncguard.campaign.cell import STAGES, Cell, CellSpec, Outcome
from syncguard.campaign.healthy import HealthyRun, HealthySpec, random_topology, run_healthy
from syncguard.campaign.options import CampaignOptions
from syncguard.campaign.pins import Pins
from syncguard.campaign.result import CampaignResult
from syncguard.campaign.running import CellSettings, run_cell

__all__ = [
    "STAGES",
    "CampaignListener",
    "CampaignOptions",
    "CampaignResult",
    "Cell",
    "CellSettings",
    "CellSpec",
    "HealthyRun",
    "HealthySpec",
    "Outcome",
    "Pins",
    "random_topology",
    "run_campaign",
    "run_cell",
    "run_healthy",
]
