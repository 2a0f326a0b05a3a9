"""What verdicts mean for a test."""

import warnings
from collections.abc import Sequence
from typing import Final

import pytest

from syncguard.conditions import CONDITIONS
from syncguard.verdict import Status, Verdict

__all__ = ["NotRunWarning", "enforce", "told"]

_HINT: Final = "--syncguard-not-run=warn lets a test pass although a check could not run"
_HEADS: Final = {Status.FAIL: "FAIL", Status.NOT_RUN: "not run", Status.PASS: "pass"}


class NotRunWarning(pytest.PytestWarning):
    """A check could not run, and ``--syncguard-not-run=warn`` lets the test pass."""


def enforce(
    verdicts: Sequence[Verdict],
    *,
    not_run: str,
    conditions: Sequence[str] = (),
    error: str = "",
) -> None:
    """Fail the running test if a sync does not pass.

    Args:
        verdicts: On the sync.
        not_run: ``fail`` or ``warn``: what a check that could not run means.
        conditions: Identifiers of the conditions that the test asked for; each needs a verdict.
        error: What went wrong with the sync, whatever the checks say; empty if nothing did.
    """
    __tracebackhide__ = True
    bad = [verdict for verdict in verdicts if verdict.counts]
    failures = [told(verdict) for verdict in bad if verdict.status is Status.FAIL]
    silences = [told(verdict) for verdict in bad if verdict.status is Status.NOT_RUN]
    judged = {verdict.condition for verdict in verdicts}
    silences += [
        f"not run {name} {CONDITIONS[name].name}: no check judges this condition"
        for name in conditions
        if name not in judged
    ]
    if error and not failures:
        failures.append(f"FAIL the sync ended with an error: {error}")
    if failures:
        pytest.fail("\n\n".join([*failures, *silences]), pytrace=False)
    if silences and not_run == "fail":
        pytest.fail("\n\n".join([*silences, _HINT]), pytrace=False)
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
