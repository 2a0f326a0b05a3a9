"""Each fault is found at the first sync in which it fires, by every check that claims it."""

import pytest

from syncguard.faults import FAULTS
from tests.faults.helpers import heals, run, sites_of, spread

LATE = [name for name, fault in FAULTS.items() if fault.late]


@pytest.mark.parametrize("name", FAULTS)
def test_found_and_undone(name: str) -> None:
    site = sites_of(name)[0]
    told, world = run(name, site)
    assert told.fired
    missed = set(FAULTS[name].claimed_by) - told.seen_by
    assert not missed, f"{name}@{site} was not seen by {missed}"
    if FAULTS[name].equivalent:
        assert not told.seen_by
    assert heals(world) == {}


@pytest.mark.parametrize("name", LATE)
def test_found_when_stale_by_one_small_step(name: str) -> None:
    told, _ = run(name, sites_of(name)[-1], late=True)
    assert told.fired
    assert set(FAULTS[name].claimed_by) <= told.seen_by


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_found_at_first_middle_and_last_site(name: str, seed: int) -> None:
    for site in spread(sites_of(name)):
        for late in (False, True) if FAULTS[name].late else (False,):
            told, _ = run(name, site, late=late, seed=seed)
            missed = set(FAULTS[name].claimed_by) - told.seen_by
            assert (told.fired > 0, missed) == (True, set()), f"{name}@{site} late={late}"
