"""What verdicts mean for a test."""

import io
import warnings
from collections.abc import Iterable, Sequence
from typing import Final

import pytest
from rich.console import Console

from syncguard.conditions import CONDITIONS
from syncguard.reporting.details import details
from syncguard.verdict import Status, Verdict

__all__ = ["NotRunWarning", "enforce"]

_HINT: Final = "--syncguard-not-run=warn lets a test pass although a check could not run"
_WIDTH: Final = 100


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
    failures = _in_full(verdict for verdict in bad if verdict.status is Status.FAIL)
    silences = _in_full(verdict for verdict in bad if verdict.status is Status.NOT_RUN)
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


def _in_full(verdicts: Iterable[Verdict]) -> list[str]:
    """Each verdict as a report shows it; those that differ in the sync only, once."""
    blocks = []
    for block in details(verdicts):
        out = io.StringIO()
        console = Console(file=out, width=_WIDTH, color_system=None, legacy_windows=False)
        console.print(block, highlight=False)
        blocks.append("\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip())
    return blocks
