"""Every fault of the library that the adapter's seams allow is found at the first sync."""

import functools

import pytest

from syncguard.errors import Unsupported
from syncguard.plugin.trying import NotHealthy, Planned, Trying
from syncguard.pytest_plugin import checked, recorder, sides

pytestmark = pytest.mark.syncguard

_UNHEALTHY: pytest.StashKey[str] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each fault and site, and a skipped one for a fault without a site."""
    if "trial" in metafunc.fixturenames:
        metafunc.parametrize("trial", _trying(metafunc.config).planned(), ids=str)


def test_fault_is_found_at_the_first_sync(trial: Planned, pytestconfig: pytest.Config) -> None:
    """By at least one of the checks that claim it, and it must have changed something."""
    if why := trial.skipped or pytestconfig.stash.get(_UNHEALTHY, ""):
        pytest.skip(why)
    try:
        found = _trying(pytestconfig).tried(trial)
    except NotHealthy as error:
        pytestconfig.stash[_UNHEALTHY] = str(error)  # neither a sync nor a new engine mends it
        pytest.skip(str(error))
    except Unsupported as error:
        pytest.skip(str(error))
    recorder(pytestconfig).tried(found)
    if not found.fired:
        pytest.fail(f"{trial} changed nothing, so it proves nothing", pytrace=False)
    if found.survived:
        pytest.fail(
            f"{trial} was not found at the first sync\n"
            f"  expected: a failure of {' or '.join(trial.claimed_by)}\n"
            f"  got: {', '.join(found.detected_by) or 'no failure at all'}\n"
            f"  what to do: see `syncguard explain {found.fault}`",
            pytrace=False,
        )


def _trying(config: pytest.Config) -> Trying:
    return Trying(checked(config), functools.partial(sides, config))
