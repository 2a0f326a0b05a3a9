from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.campaign.planted import planted

Plant = Callable[..., None]


@pytest.fixture
def plant() -> Iterator[Plant]:
    """Make planted faults the only ones until the test ends."""
    with ExitStack() as stack:
        yield lambda *names: stack.enter_context(planted(names))
