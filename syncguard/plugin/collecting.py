"""The report of a run, from what the tests of all its workers told."""

import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from syncguard.conditions import CONDITIONS, CORE_CONDITIONS
from syncguard.errors import UsageError
from syncguard.plugin.options import Options
from syncguard.plugin.recording import Share, Trial
from syncguard.report import Report, SyncSummary

__all__ = ["Collected", "Gathered", "collect"]


class Gathered(Protocol):
    """What was told, as it came.

    Attributes:
        shares: Test and JSON text of its `Share`.
        skips: Reasons of skipped tests.
        crashes: Tests during which a worker died.
        interrupted: Whether the user stopped the run.
    """

    shares: list[tuple[str, str]]
    skips: list[str]
    crashes: list[str]
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Collected:
    """What a run found.

    Attributes:
        report: The report.
        trials: Faults that were armed.
        skips: Reason to number of tests that were skipped for it.
        written: Where the report was written; empty if nowhere.
        error: Why it could not be written.
    """

    report: Report
    trials: tuple[Trial, ...] = ()
    skips: Counter[str] = field(default_factory=Counter)
    written: str = ""
    error: str = ""


def collect(gathered: Gathered, options: Options) -> Collected:
    """Make the report of a run, and write it where the options say.

    Tests of several workers come in any order; their syncs are numbered in the order of the tests'
    names, so that the same tests give the same report.
    """
    shares = sorted(gathered.shares, key=operator.itemgetter(0))
    told = [(test, Share.from_json(text)) for test, text in shares]
    trials = [trial for _, share in told for trial in share.trials]
    skips = Counter(gathered.skips)
    judged = [(test, *pair) for test, share in told for pair in share.judged]
    report = _merged(judged, gathered.crashes)
    report = replace(
        report, interrupted=gathered.interrupted, notes=tuple(_notes(report, trials, skips))
    )
    collected = Collected(report, tuple(trials), skips)
    if not options.report:
        return collected
    try:
        report.write(options.report)
    except UsageError as error:
        return replace(collected, error=str(error))
    return replace(collected, written=options.report)


def _merged(judged: Sequence[tuple[str, str, Report]], crashes: Sequence[str]) -> Report:
    numbers = itertools.count(1)
    syncs: dict[str, SyncSummary] = {}
    verdicts = []
    for test, name, part in judged:
        (sync,) = part.syncs
        if name not in syncs:
            what = f"{test}: {sync.what}"
            syncs[name] = replace(sync, number=next(numbers), what=what)
        number = syncs[name].number
        verdicts += [replace(verdict, sync=number) for verdict in part.verdicts]
    lost = [
        SyncSummary(next(numbers), "", what=test, error="the worker died during this test")
        for test in crashes
    ]
    wanted = {condition for _, _, part in judged for condition in part.conditions}
    conditions = [name for name in CONDITIONS if name in wanted]
    return Report(
        environment=judged[0][2].environment if judged else {},
        syncs=(*syncs.values(), *lost),
        verdicts=tuple(verdicts),
        conditions=tuple(conditions or (condition.id for condition in CORE_CONDITIONS)),
    )


def _notes(report: Report, trials: Sequence[Trial], skips: Counter[str]) -> Iterable[str]:
    if not report.verdicts and not trials:
        yield "no test of this run checked a sync"
    claimed = [trial for trial in trials if trial.claimed_by]
    if trials:
        found = sum(not trial.survived for trial in claimed)
        more = f"; {len(trials) - len(claimed)} that none claims" if claimed != trials else ""
        yield f"faults: {found} of {len(claimed)} found at once by a check that claims them{more}"
    for trial in claimed:
        if trial.survived:
            fired = "" if trial.fired else ", and fired on nothing"
            yield f"survived: {trial.fault} at {trial.site}{fired}"
    for reason, count in sorted(skips.items()):
        yield f"skipped {count}: {reason}"
