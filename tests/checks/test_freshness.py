"""C8 by the version that an engine reports."""

import pytest

from syncguard.checks.freshness import served_version
from syncguard.observations import SyncRecord
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import is_complete, parts_of

BUCKETS = [("a", "b"), ("b", "c")]


def record(served: str, **fields: object) -> SyncRecord:
    return SyncRecord(3, "7", served, **{"buckets": BUCKETS, **fields})  # type: ignore[arg-type]


def test_the_version_that_was_sent_passes_for_all_that_was_sent() -> None:
    judgement = served_version(record("7"))
    assert judgement.status is Status.PASS
    assert judgement.message == "the engine reports version 7"
    assert judgement.coverage == Coverage(3, 3)


@pytest.mark.parametrize(("served", "got"), [("6", "6"), ("", "no version"), ("07", "07")])
def test_another_version_fails(served: str, got: str) -> None:
    judgement = served_version(record(served))
    assert (judgement.status, judgement.subject) == (Status.FAIL, "sync 3")
    assert judgement.coverage == Coverage(3, 3)
    told = parts_of(judgement)
    assert told["what"] == "the engine reports another version than the one that was sent"
    assert (told["where"], told["expected"], told["got"]) == ("sync 3", "7", got)
    assert is_complete(judgement)


@pytest.mark.parametrize("served", ["6", ""])
def test_a_failed_sync_publishes_nothing(served: str) -> None:
    judgement = served_version(record(served, error="ValueError"))
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.NOT_APPLICABLE)
    assert judgement.message == "the sync failed, and its version is not served"


def test_a_failed_sync_whose_version_is_reported_fails() -> None:
    judgement = served_version(record("7", error="ValueError"))
    assert (judgement.status, judgement.subject) == (Status.FAIL, "sync 3")
    told = parts_of(judgement)
    assert told["what"] == "the engine reports the version of a sync that failed"
    assert (told["where"], told["got"]) == ("sync 3", "7")
    assert is_complete(judgement)
    assert judgement.coverage == Coverage(3, 3)


def test_a_sync_without_a_weight_proves_nothing() -> None:
    judgement = served_version(record("7", buckets=[]))
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "the sync carried no weight"
