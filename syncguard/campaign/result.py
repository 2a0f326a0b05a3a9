"""The result of a campaign: the detection matrix, what it means for the shell, and its JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from syncguard.campaign.cell import Cell, Outcome
from syncguard.campaign.healthy import HealthyRun
from syncguard.campaign.statistics import CheckRow, FaultRow, check_rows, fault_rows, wilson
from syncguard.checks import CHECKS
from syncguard.faults import FAULTS
from syncguard.files import is_of_schema, write_atomically
from syncguard.report import ExitCode
from syncguard.runner import OBSERVABILITY

__all__ = ["SCHEMA", "CampaignResult", "is_campaign"]

SCHEMA: Final = "syncguard.campaign/1"
"""Name and version of the JSON; the version changes when a field changes its meaning."""


@dataclass(frozen=True, slots=True)
class CampaignResult:
    """All that a campaign found.

    Attributes:
        engine: Where the faults were armed.
        profile: Which checks ran, and how deep the probes went.
        checks: Names of the checks that ran.
        cells: The cells, in the order of the plan.
        healthy: The healthy runs.
        skipped: Name of a fault that could not be armed to the reason.
        environment: Versions.
        seconds: How long the campaign took, earlier tries not counted.
        resumed: How many cells and healthy runs an earlier try had finished.
    """

    engine: str
    checks: tuple[str, ...]
    cells: tuple[Cell, ...]
    profile: str = "smoke"
    healthy: tuple[HealthyRun, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    resumed: int = 0

    @property
    def check_rows(self) -> list[CheckRow]:
        """One row for each check."""
        return check_rows(self.checks, self.cells, self.healthy)

    @property
    def fault_rows(self) -> list[FaultRow]:
        """One row for each fault, survivors first."""
        return fault_rows(self.cells)

    def claims(self, cell: Cell) -> tuple[str, ...]:
        """The checks of this campaign that say they see the cell's fault."""
        return tuple(name for name in cell.claimed_by if name in {*self.checks, OBSERVABILITY})

    @property
    def survivors(self) -> list[Cell]:
        """Cells that no check detected in time, whether one claims them or not."""
        return [cell for cell in self.cells if cell.outcome in (Outcome.SURVIVED, Outcome.DELAYED)]

    @property
    def broken_claims(self) -> list[Cell]:
        """Survivors that a check claims."""
        return [cell for cell in self.survivors if self.claims(cell)]

    @property
    def within(self) -> int:
        """The most syncs that a fault may take to be found: until every layer was probed."""
        return max((cell.within for cell in self.cells), default=1)

    @property
    def alarms(self) -> list[HealthyRun]:
        """Healthy runs that alarmed."""
        return [run for run in self.healthy if run.alarmed]

    @property
    def defects(self) -> list[tuple[Cell, str]]:
        """Cells that prove nothing, with the reason: these are defects of the campaign."""
        return [(cell, why) for cell in self.cells for why in self._defects(cell)]

    def _defects(self, cell: Cell) -> list[str]:
        if cell.outcome is Outcome.ERROR:
            return [f"could not be run: {cell.error}"]
        if cell.outcome is Outcome.NOT_FIRED:
            # Where only some checks run, nothing may ask for what a fault changes.
            some = set(CHECKS) - set(self.checks)
            idle = some and set(self.claims(cell)) <= {OBSERVABILITY}
            return [] if idle else ["the fault fired on nothing"]
        if cell.outcome is Outcome.EQUIVALENT and not cell.fired:
            return []
        unreached = [name for name in self.claims(cell) if name not in cell.reached]
        return [f"{name} claims it and was never reached" for name in unreached]

    @property
    def exit_code(self) -> ExitCode:
        """1 if a claimed fault survives or a healthy run alarms; 4 if cells prove nothing."""
        if self.broken_claims or self.alarms:
            return ExitCode.VIOLATED
        return ExitCode.INTERNAL if self.defects else ExitCode.PASSED

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values, as ``schemas/campaign-1.json`` describes them."""
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "profile": self.profile,
            "exit_code": self.exit_code.value,
            "environment": dict(self.environment),
            "seconds": round(self.seconds, 3),
            "cells": [cell.to_dict() for cell in self.cells],
            "checks": [_check_to_json(row) for row in self.check_rows],
            "faults": [_fault_to_json(row) for row in self.fault_rows],
            "healthy": {
                "runs": len(self.healthy),
                "alarms": [run.to_dict() for run in self.alarms],
                "interval": list(wilson(len(self.alarms), len(self.healthy))),
            },
            "skipped": dict(self.skipped),
            "defects": [
                {"replay": cell.replay, "why": why, "fault": cell.spec.fault}
                for cell, why in self.defects
            ],
        }

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    def write(self, path: str | Path) -> None:
        """Write the JSON text to a file: all of it, or nothing.

        Raises:
            UsageError: The path cannot be written, or holds something that is not a campaign.
        """
        write_atomically(path, self.to_json(), is_campaign)


def is_campaign(text: str) -> bool:
    """Whether a file's text is the JSON of a campaign of any version."""
    return is_of_schema(text, "syncguard.campaign")


def validate(value: object) -> None:
    """Check a value against ``schemas/campaign-1.json``.

    Raises:
        ValueError: It does not satisfy the schema; the text says where.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(_schema()).iter_errors(value))
    if error is not None:
        raise ValueError(f"not a {SCHEMA}: at {error.json_path}: {error.message}")


@cache
def _schema() -> Any:
    text = resources.files("syncguard").joinpath("schemas/campaign-1.json").read_text("utf-8")
    return json.loads(text)


def _check_to_json(row: CheckRow) -> dict[str, Any]:
    return {
        "check": row.check,
        "condition": row.condition,
        "reference": row.reference,
        "claimed": row.claimed,
        "detected": row.detected,
        "rate": row.rate,
        "interval": list(wilson(row.detected, row.claimed)),
        "seen": row.seen,
        "alone": list(row.alone),
        "false_alarms": row.alarms,
        "false_alarm_interval": list(wilson(row.alarms, row.runs)),
    }


def _fault_to_json(row: FaultRow) -> dict[str, Any]:
    known = FAULTS.get(row.fault)
    return {
        "fault": row.fault,
        "breaks": list(row.breaks),
        "summary": known.summary if known else "",
        "met": list(known.met) if known else [],
        "links": list(known.links) if known else [],
        "outcome": row.outcome.value,
        "cells": len(row.cells),
        "detected": row.detected,
        "syncs_to_detect": row.syncs,
        "seen_by": row.seen_by,
    }
