"""Faults that a test registers are gone after it."""

from collections.abc import Iterator

import pytest

from syncguard.faults import registry


@pytest.fixture
def scratch_registry() -> Iterator[None]:
    before = dict(registry.FAULTS)
    try:
        yield
    finally:
        registry._FAULTS.clear()
        registry._FAULTS.update(before)
