"""What the tests of the suite share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from syncguard.plugin.guarding import Session
from syncguard.protocols import Engine, Learner
from syncguard.pytest_plugin import checked, sessions
from syncguard.report import SyncSummary
from syncguard.verdict import Verdict

_LEARNING_RATE: Final = 1e-6
_PATTERNS: Final = (0xA5, 0x5A)

_HERE: Final = Path(__file__).parent
_FAULTS: Final = "test_faults.py"

Judged = tuple[SyncSummary, Sequence[Verdict]]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Arm faults last, in whatever order tests run: not every engine recovers from every fault."""
    items.sort(key=lambda item: item.path.name == _FAULTS and item.path.parent == _HERE)


@pytest.fixture(scope="session")
def session(
    pytestconfig: pytest.Config, syncguard_learner: Learner, syncguard_engine: Engine
) -> Session:
    """The syncs of the two sides."""
    return sessions(pytestconfig).of(syncguard_learner, syncguard_engine, checked(pytestconfig))


@pytest.fixture(scope="session")
def history(session: Session) -> list[Judged]:
    """Three syncs with every check: weights, those of an optimizer step, and the same again."""
    first = session.sync(poison=_PATTERNS[0])
    step = session.learner.step(_LEARNING_RATE)
    second = session.sync(poison=_PATTERNS[1], what="after one optimizer step", step=step)
    return [first, second, session.sync(same_weights=True, what="the same weights again")]
