"""Each fault is found at the first sync in which it fires, by every check that claims it."""

import pytest

from syncguard.faults import FAULTS
from tests.faults.helpers import heals, run, sites_of, spread

LATE = [name for name, fault in FAULTS.items() if fault.late]
FIRST = set({FAULTS[name].seam: name for name in reversed(list(FAULTS))}.values())
"""For each seam the first fault that is armed there: what it undoes, the seam does for all."""


@pytest.mark.parametrize("name", FAULTS)
def test_found(name: str) -> None:
    site = sites_of(name)[0]
    told, _ = run(name, site)
    assert told.fired
    missed = set(FAULTS[name].claimed_by) - told.seen_by
    assert not missed, f"{name}@{site} was not seen by {missed}"
    if FAULTS[name].equivalent:
        assert not told.seen_by


@pytest.mark.parametrize(
    "name",
    [name if name in FIRST else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS],
)
def test_undone(name: str) -> None:
    _, world = run(name, sites_of(name)[0])
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
