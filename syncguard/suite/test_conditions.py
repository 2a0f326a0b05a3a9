"""Every condition is a property: each check passes after every sync."""

from collections.abc import Sequence

import pytest

from syncguard.checks import CHECKS
from syncguard.plugin.guarding import Session
from syncguard.plugin.policy import enforce
from syncguard.pytest_plugin import checked, recorder
from syncguard.report import SyncSummary
from syncguard.runner import OBSERVABILITY
from syncguard.verdict import Verdict

_CONDITIONS = {check.name: check.condition for check in CHECKS.values() if not check.reference}
_CONDITIONS[OBSERVABILITY] = "C7"


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(name, marks=pytest.mark.syncguard(conditions=condition), id=name)
        for name, condition in _CONDITIONS.items()
    ],
)
def test_check_passes_after_every_sync(
    check: str,
    history: Sequence[tuple[SyncSummary, Sequence[Verdict]]],
    session: Session,
    pytestconfig: pytest.Config,
) -> None:
    """Weights, those of a small optimizer step, and the same weights again."""
    mine = [
        (summary, [verdict for verdict in verdicts if verdict.check == check])
        for summary, verdicts in history
    ]
    for summary, verdicts in mine:
        session.record(recorder(pytestconfig), summary, verdicts, [_CONDITIONS[check]])
    answers = [verdict for _, verdicts in mine for verdict in verdicts]
    if not any(verdict.counts for verdict in answers):
        pytest.skip(f"{check} does not apply: {answers[-1].message}")
    enforce(answers, not_run=checked(pytestconfig).not_run)
