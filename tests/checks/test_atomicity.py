"""C11: no request within a sync."""

from syncguard.checks.atomicity import exclusive_sync
from syncguard.observations import ServedRequest
from syncguard.verdict import Reason
from tests.checks.factories import a_record, fails, passes, silent

BEFORE = (ServedRequest("1", 0), ServedRequest("", 1))


def test_requests_outside_of_syncs_pass() -> None:
    after = [*BEFORE, ServedRequest("2", 0)]
    assert passes(exclusive_sync(a_record(), BEFORE, after, True), 1)
    assert passes(exclusive_sync(a_record(error="x"), BEFORE, BEFORE, False), 1)
    told = exclusive_sync(a_record(), BEFORE, after, True).message
    assert told == "no request was answered while the sync was open"


def test_a_request_within_one_is_named() -> None:
    after = [*BEFORE, ServedRequest("1", 2)]
    judgement = exclusive_sync(a_record(), BEFORE, after, True)
    assert fails(judgement, "sync 2")
    assert "1 request was answered while it was open" in judgement.message
    judgement = exclusive_sync(a_record(), BEFORE, [*after, ServedRequest("1", 2)], True)
    assert "2 requests were answered while it was open" in judgement.message


def test_an_engine_that_serves_after_a_failure_is_named() -> None:
    judgement = exclusive_sync(a_record(error="x"), BEFORE, BEFORE, True)
    assert fails(judgement, "sync 2", measured=0)
    assert "the engine lets requests in after it failed" in judgement.message


def test_an_engine_that_keeps_no_record_is_not_applicable() -> None:
    for before, after, admits in ((None, [], True), ([], None, True), ([], [], None)):
        assert silent(exclusive_sync(a_record(), before, after, admits), Reason.NOT_APPLICABLE)
