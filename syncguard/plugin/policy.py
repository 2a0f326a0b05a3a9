"""What verdicts mean for a test."""

import warnings
from collections.abc import Sequence
from typing import Final

import pytest

from syncguard.conditions import CONDITIONS
from syncguard.report import SyncSummary
from syncguard.verdict import Status, Verdict

__all__ = ["NotRunWarning", "enforce", "told"]

_HEADS: Final = {Status.FAIL: "FAIL", Status.NOT_RUN: "not run", Status.PASS: "pass"}


class NotRunWarning(pytest.PytestWarning):
    """A check could not run, and ``--syncguard-not-run=warn`` lets the test pass."""


def enforce(
    summary: SyncSummary, verdicts: Sequence[Verdict], conditions: Sequence[str], not_run: str
) -> None:
    """Fail the running test if its sync does not pass.

    Args:
        summary: The sync.
        verdicts: On the sync.
        conditions: Identifiers of the conditions that the test asked for; empty for all.
        not_run: ``fail`` or ``warn``.
    """
    __tracebackhide__ = True
    bad = [v for v in verdicts if v.counts and v.status is not Status.PASS]
    bad.sort(key=lambda verdict: -verdict.status.severity)
    failures = [told(verdict) for verdict in bad if verdict.status is Status.FAIL]
    silences = [told(verdict) for verdict in bad if verdict.status is Status.NOT_RUN]
    judged = {verdict.condition for verdict in verdicts}
    silences += [
        f"not run {name} {CONDITIONS[name].name}: no check judges this condition"
        for name in conditions
        if name not in judged
    ]
    if summary.error and not failures:
        failures.append(f"FAIL sync {summary.number} ended with an error: {summary.error}")
    if failures or (silences and not_run == "fail"):
        hint = (
            "\n\n--syncguard-not-run=warn lets a check that could not run pass with a warning"
            if silences and not failures
            else ""
        )
        pytest.fail("\n\n".join([*failures, *silences]) + hint, pytrace=False)
    if silences:
        warnings.warn(NotRunWarning("\n\n".join(silences)), stacklevel=3)


def told(verdict: Verdict) -> str:
    """A verdict in full, under a line that says which it is."""
    name = CONDITIONS[verdict.condition].name
    parts = [
        f"{_HEADS[verdict.status]} {verdict.condition} {name}",
        verdict.check,
        verdict.subject,
        str(verdict.reason or ""),
        f"sync {verdict.sync}",
    ]
    return " | ".join(filter(None, parts)) + "\n" + verdict.message
