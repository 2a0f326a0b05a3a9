from syncguard.campaign.trail import Trail
from syncguard.faults import FAULTS
from syncguard.verdict import Reason, Status, Verdict
from tests.campaign.conftest import Plant
from tests.campaign.planted import MUTE, STALE

CHECKS = ("exact-probe", "re-derivation", "published-random-probe")


def verdict(check: str, status: Status = Status.FAIL, reason: Reason | None = None) -> Verdict:
    return Verdict("C3", check, status, f"what {check} says", reason)


def a_trail(name: str, checks: tuple[str, ...] = CHECKS) -> Trail:
    fault = FAULTS[name]
    return Trail(fault.breaks, fault.claimed_by, checks)


def test_nothing_counts_before_the_first_firing(plant: Plant) -> None:
    plant(STALE)
    trail = a_trail(STALE)
    trail.note(0, [verdict("exact-probe")])
    assert (trail.detected_by, dict(trail.reached), trail.settled) == ((), {}, False)
    trail.note(1, [verdict("exact-probe")])
    assert trail.seen_at == {"exact-probe": 1}


def test_it_is_settled_when_all_claims_were_reached(plant: Plant) -> None:
    plant(STALE)
    trail = a_trail(STALE)
    trail.note(1, [verdict("exact-probe")])
    assert not trail.settled
    trail.note(1, [verdict("re-derivation", Status.NOT_RUN, Reason.NOT_APPLICABLE)])
    assert not trail.settled
    trail.note(1, [verdict("re-derivation", Status.PASS)])
    assert trail.settled
    assert trail.detected_by == ("exact-probe",)


def test_claims_of_checks_that_do_not_run_are_not_waited_for(plant: Plant) -> None:
    plant(STALE)
    trail = a_trail(STALE, ("exact-probe",))
    trail.note(1, [verdict("exact-probe")])
    assert trail.settled


def test_the_first_words_of_a_check_are_kept(plant: Plant) -> None:
    plant(STALE)
    trail = a_trail(STALE)
    trail.note(1, [verdict("published-random-probe")])
    trail.note(2, [verdict("published-random-probe"), verdict("exact-probe")])
    assert trail.seen_at == {"published-random-probe": 1, "exact-probe": 2}
    assert trail.evidence["exact-probe"] == "what exact-probe says"
    assert trail.detected_by == ("exact-probe",)


def test_silence_is_no_detection_of_another_fault(plant: Plant) -> None:
    plant(STALE, MUTE)
    silent = verdict("exact-probe", Status.NOT_RUN, Reason.TIMEOUT)
    for name, detected in ((STALE, ()), (MUTE, ("observability",))):
        trail = a_trail(name)
        trail.note(1, [silent])
        assert trail.detected_by == detected
        assert trail.not_run == {"exact-probe": "timeout: what exact-probe says"}


def test_a_silent_reference_is_no_detection(plant: Plant) -> None:
    plant(MUTE)
    trail = a_trail(MUTE)
    trail.note(1, [verdict("published-random-probe", Status.NOT_RUN, Reason.ERROR)])
    assert trail.detected_by == ()
