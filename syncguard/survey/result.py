"""What a survey found: for each cell what each condition came to."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from syncguard.conditions import CONDITIONS
from syncguard.files import is_of_schema, write_atomically
from syncguard.report import ExitCode
from syncguard.survey.cell import SurveyCell
from syncguard.survey.findings import FINDINGS
from syncguard.verdict import Status

__all__ = ["SCHEMA", "CellResult", "SurveyResult", "Told", "is_survey"]

SCHEMA: Final = "syncguard.survey/1"
"""Name and version of the JSON; the version changes when a field changes its meaning."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one condition came to in one cell.

    Attributes:
        status: The worst verdict; what no check said anything of is ``not_run``.
        subjects: Parameters, or ranks, that verdicts of that status name; the first ones.
        text: What the most telling verdict says, or why there is none.
        applicable: Whether any check applied.
    """

    status: Status
    subjects: tuple[str, ...] = ()
    text: str = ""
    applicable: bool = True


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell.

    Attributes:
        cell: The cell.
        told: By condition, all of `syncguard.conditions.CONDITIONS`.
        seconds: How long its process took.
        peak_mib: Most memory that the process held, its children's included; 0 if it is not known.
        error: Why it ended without verdicts; empty if it did not.
    """

    cell: SurveyCell
    told: Mapping[str, Told]
    seconds: float
    peak_mib: float = 0.0
    error: str = ""

    @property
    def failing(self) -> tuple[str, ...]:
        """Conditions that are violated."""
        return tuple(name for name, told in self.told.items() if told.status is Status.FAIL)

    @property
    def status(self) -> Status:
        """The worst of its conditions; one that does not apply, or is an extension, may be open."""
        if self.failing:
            return Status.FAIL
        open_ = [
            name
            for name, told in self.told.items()
            if told.status is Status.NOT_RUN and told.applicable and CONDITIONS[name].core
        ]
        return Status.NOT_RUN if open_ or self.error else Status.PASS

    @property
    def known(self) -> bool:
        """Whether what fails is what the cell's finding says, and nothing else."""
        finding = FINDINGS.get(self.cell.finding)
        named = {name: self.told[name].subjects for name in self.failing}
        return bool(named) and finding is not None and finding.explains(named)

    def to_dict(self) -> dict[str, Any]:
        """The cell as JSON values."""
        cell = {each.name: getattr(self.cell, each.name) for each in fields(self.cell)}
        cell["settings"] = {name: _plain(value) for name, value in self.cell.settings.items()}
        told = {
            name: asdict(one) | {"status": one.status.value, "subjects": list(one.subjects)}
            for name, one in self.told.items()
        }
        return {
            "name": self.cell.name,
            "cell": cell,
            "status": self.status.value,
            "known": self.known,
            "conditions": told,
            "seconds": round(self.seconds, 3),
            "peak_mib": round(self.peak_mib, 1),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """All cells.

    Attributes:
        cells: In the order of the table.
        seconds: How long it took.
        environment: Versions.
        interrupted: Whether the user stopped it; cells that had not ended say so.
    """

    cells: tuple[CellResult, ...]
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False

    def of(self, status: Status) -> tuple[CellResult, ...]:
        """The cells of a status."""
        return tuple(cell for cell in self.cells if cell.status is status)

    @property
    def exit_code(self) -> ExitCode:
        """Violated if a cell fails, known or not; not checked if one could not be run."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.of(Status.FAIL):
            return ExitCode.VIOLATED
        return ExitCode.NOT_CHECKED if self.of(Status.NOT_RUN) else ExitCode.PASSED

    def to_json(self) -> str:
        """The result as JSON text."""
        value = {
            "schema": SCHEMA,
            "environment": dict(self.environment),
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
            "cells": [cell.to_dict() for cell in self.cells],
        }
        return json.dumps(value, indent=2, allow_nan=False) + "\n"

    def write(self, path: str | Path) -> None:
        """Write the JSON text to a file: all of it, or nothing.

        Raises:
            UsageError: The path cannot be written, or holds something that is no survey.
        """
        write_atomically(path, self.to_json(), is_survey)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def is_survey(text: str) -> bool:
    """Whether a file's text is a survey of any version."""
    return is_of_schema(text, "syncguard.survey")
