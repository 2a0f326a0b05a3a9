"""What a profile promises: which checks, and within how many syncs."""

import pytest

from syncguard.checks import CHECKS
from syncguard.profiles import PRODUCTION, PROFILES, SMOKE


@pytest.mark.parametrize(("layers", "period"), [(0, 1), (1, 1), (8, 1), (9, 2), (120, 15)])
def test_layers_have_their_turn_within_a_period(layers: int, period: int) -> None:
    assert PRODUCTION.period(layers) == period
    assert PRODUCTION.within(layers) == 32 * period
    assert SMOKE.period(layers) == SMOKE.within(layers) == 1


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_of_checks_that_there_are(name: str) -> None:
    profile = PROFILES[name]
    assert set(profile.checks or ()) <= set(CHECKS)
    assert set(profile.stand_ins) <= set(CHECKS)
    assert set(profile.stand_ins.values()) <= set(profile.checks or CHECKS)


def test_claims_are_of_the_check_that_stands_for_another() -> None:
    claims = ("exact-probe", "ledger", "block-probe")
    assert PRODUCTION.claims(claims) == ("block-probe", "ledger")
    assert SMOKE.claims(claims) == claims
