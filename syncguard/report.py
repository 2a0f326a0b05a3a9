"""The report of a run: what was synchronized, what every check said, and what that means."""

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeAlias

from syncguard.conditions import CORE_CONDITIONS
from syncguard.encoding import real_to_json, verdict_from_json, verdict_to_json
from syncguard.files import is_of_schema, write_atomically
from syncguard.observations import StepReport
from syncguard.summary import Summary, summarize
from syncguard.verdict import Status, Verdict, worst

__all__ = ["SCHEMA", "Environment", "ExitCode", "Report", "SyncSummary", "exit_code", "is_report"]

SCHEMA: Final = "syncguard.report/1"
"""Name and version of the report's JSON; the version changes when a field changes its meaning."""

Environment: TypeAlias = Mapping[str, "str | Environment"]
"""Names and versions, nested where that helps to read them."""


class ExitCode(enum.IntEnum):
    """What a command tells the shell."""

    PASSED = 0
    VIOLATED = 1
    USAGE = 2
    NOT_CHECKED = 3
    INTERNAL = 4
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """What it means, in a few words."""
        return _MEANINGS[self]


_MEANINGS: Final = {
    ExitCode.PASSED: "all checks passed",
    ExitCode.VIOLATED: "a condition is violated",
    ExitCode.USAGE: "wrong usage or configuration",
    ExitCode.NOT_CHECKED: "something could not be checked",
    ExitCode.INTERNAL: "internal error",
    ExitCode.INTERRUPTED: "interrupted",
}


@dataclass(frozen=True, slots=True)
class SyncSummary:
    """One sync of the run, in a few numbers.

    Attributes:
        number: Number of the sync, from 1.
        version: The weight version that was asked for.
        served_version: The version that the engine reports afterwards.
        what: What was sent, such as "the learner's weights" or "the same weights again".
        buckets: Messages that were sent.
        tensors: Tensors that were sent.
        bytes: Bytes that were sent.
        seconds: How long the sync took.
        checks_s: How long all observations and checks around it took.
        error: What went wrong; empty if nothing did.
        step: The optimizer step that the learner took before it, if it took one.
    """

    number: int
    version: str
    served_version: str = ""
    what: str = ""
    buckets: int = 0
    tensors: int = 0
    bytes: int = 0
    seconds: float = 0.0
    checks_s: float = 0.0
    error: str = ""
    step: StepReport | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run found.

    Attributes:
        environment: What the run computed with: versions, device, engine, kernels in use.
        syncs: The syncs, in order.
        verdicts: The answer of every check after every sync, in the order they came.
        interrupted: Whether the user stopped the run before its end.
        notes: Remarks on the run as a whole.
        conditions: Identifiers of the conditions that the run set out to check.
    """

    environment: Environment = field(default_factory=dict)
    syncs: tuple[SyncSummary, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    conditions: tuple[str, ...] = tuple(condition.id for condition in CORE_CONDITIONS)

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """One line per condition: those that were to be checked, then others with a verdict."""
        return summarize(self.conditions, self.verdicts)

    @property
    def status(self) -> Status:
        """The worst of the verdicts, and never a pass for what was left unanswered.

        An interrupted run, a sync that ended in an error and a condition without any verdict
        count as ``not_run``.
        """
        unanswered = (
            self.interrupted
            or any(sync.error for sync in self.syncs)
            or any(summary.telling is None for summary in self.summaries)
        )
        found = worst(self.verdicts)
        return Status.NOT_RUN if unanswered and found is Status.PASS else found

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, as ``schemas/report-1.json`` describes them."""
        return {
            "schema": SCHEMA,
            "status": self.status.value,
            "interrupted": self.interrupted,
            "conditions": list(self.conditions),
            "environment": _plain(self.environment),
            "syncs": [_sync_to_json(sync) for sync in self.syncs],
            "verdicts": [verdict_to_json(verdict) for verdict in self.verdicts],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The report as JSON text; see `syncguard.encoding` for NaN and infinities."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Read a report back.

        Raises:
            ValueError: The text is no JSON, or not a report; the text of the error says where.
        """
        value = json.loads(text)
        _validate(value)
        return cls(
            environment=value["environment"],
            syncs=tuple(_sync_from_json(sync) for sync in value["syncs"]),
            verdicts=tuple(verdict_from_json(verdict) for verdict in value["verdicts"]),
            interrupted=value["interrupted"],
            notes=tuple(value["notes"]),
            conditions=tuple(value["conditions"]),
        )

    def write(self, path: str | Path) -> None:
        """Write the JSON text to a file: all of it, or nothing.

        An earlier report at that path is replaced; any other file is left alone.

        Raises:
            UsageError: The path cannot be written, or holds something that is not a report.
        """
        write_atomically(path, self.to_json(), is_report)


def exit_code(report: Report, strict: bool = False) -> ExitCode:
    """What a report means for the shell.

    Args:
        report: The report.
        strict: Count as not checked also a condition that no check applied to, and one whose
            checks did not cover all layers and bytes.
    """
    if report.interrupted:
        return ExitCode.INTERRUPTED
    if report.status is Status.FAIL:
        return ExitCode.VIOLATED
    if report.status is Status.NOT_RUN or (
        strict and any(summary.gap for summary in report.summaries)
    ):
        return ExitCode.NOT_CHECKED
    return ExitCode.PASSED


def is_report(text: str) -> bool:
    """Whether a file's text is a syncguard report of any version."""
    return is_of_schema(text, "syncguard.report")


def _plain(environment: Environment) -> dict[str, Any]:
    return {
        name: _plain(value) if isinstance(value, Mapping) else str(value)
        for name, value in environment.items()
    }


def _sync_to_json(sync: SyncSummary) -> dict[str, Any]:
    value = asdict(sync)
    value["seconds"] = real_to_json(sync.seconds)
    value["checks_s"] = real_to_json(sync.checks_s)
    if sync.step is not None:
        value["step"] = {name: real_to_json(real) for name, real in value["step"].items()}
    return value


def _sync_from_json(value: Mapping[str, Any]) -> SyncSummary:
    known = {each.name: value[each.name] for each in fields(SyncSummary)}
    known["seconds"] = float(value["seconds"])
    known["checks_s"] = float(value["checks_s"])
    if (step := value["step"]) is not None:
        known["step"] = StepReport(
            **{each.name: float(step[each.name]) for each in fields(StepReport)}
        )
    return SyncSummary(**known)


@cache
def _schema() -> Any:
    text = resources.files("syncguard").joinpath("schemas/report-1.json").read_text("utf-8")
    return json.loads(text)


def _validate(value: object) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(_schema()).iter_errors(value))
    if error is not None:
        raise ValueError(f"not a {SCHEMA}: at {error.json_path}: {error.message}")
