"""Every fault of the library that the adapter's seams allow is found at the first sync."""

import functools

import pytest

from syncguard.plugin.trying import NotHealthy, Planned, Trying
from syncguard.pytest_plugin import checked, recorder, sides

pytestmark = pytest.mark.syncguard


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each fault and site, and a skipped one for a fault without a site."""
    if "trial" in metafunc.fixturenames:
        metafunc.parametrize("trial", _trying(metafunc.config).planned(), ids=str)


def test_fault_is_found_at_the_first_sync(trial: Planned, pytestconfig: pytest.Config) -> None:
    """By at least one of the checks that claim it, and it must have changed something."""
    if trial.skipped:
        pytest.skip(trial.skipped)
    try:
        found = _trying(pytestconfig).tried(trial)
    except NotHealthy as error:
        pytest.skip(str(error))
    recorder(pytestconfig).tried(found)
    if not found.fired:
        pytest.fail(f"{trial} changed nothing, so it proves nothing", pytrace=False)
    if trial.claimed_by and not set(found.detected_by) & set(trial.claimed_by):
        pytest.fail(
            f"{trial} was not found at the first sync\n"
            f"  expected: a failure of {' or '.join(trial.claimed_by)}\n"
            f"  got: {', '.join(found.detected_by) or 'no failure at all'}\n"
            f"  what to do: see `syncguard explain {found.fault}`",
            pytrace=False,
        )


def _trying(config: pytest.Config) -> Trying:
    return Trying(checked(config), functools.partial(sides, config))
