"""C5: one session, whole."""

from syncguard.checks.completeness import session
from syncguard.observations import SyncRecord
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import is_complete, parts_of

BUCKETS: list[tuple[str, ...]] = [("a", "b"), ("b", "c")]


def test_a_closed_session_passes_for_every_weight_that_came() -> None:
    judgement = session(SyncRecord(1, "1", buckets=BUCKETS))
    assert judgement.status is Status.PASS
    assert judgement.message == "one session, closed, nothing left staged"
    assert judgement.coverage == Coverage(3, 3)


def test_an_error_fails_whatever_came() -> None:
    for count in (3, 0):
        buckets = BUCKETS if count else []
        record = SyncRecord(4, "v7", buckets=buckets, error="ValueError: no such weight 'x'")
        judgement = session(record)
        assert (judgement.status, judgement.subject) == (Status.FAIL, "sync 4")
        assert judgement.coverage == Coverage(count, count)
        told = parts_of(judgement)
        assert told["what"] == "the sync ended with an error"
        assert told["where"] == "sync 4, version v7"
        assert told["got"] == "ValueError: no such weight 'x'"
        assert is_complete(judgement)


def test_staged_layers_are_all_named() -> None:
    record = SyncRecord(1, "1", buckets=BUCKETS, unfolded=["layers.0.qkv", "layers.1.qkv"])
    judgement = session(record)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "layers.0.qkv")
    assert (judgement.measured, judgement.bound) == (2, 0)
    assert judgement.evidence == (
        ("layers.0.qkv", "staged, not folded"),
        ("layers.1.qkv", "staged, not folded"),
    )
    told = parts_of(judgement)
    assert told["what"] == "2 layers had staged data when the sync ended"
    assert told["where"] == "layers.0.qkv, layers.1.qkv"
    assert is_complete(judgement)
    assert judgement.coverage.complete
    one = session(SyncRecord(1, "1", buckets=BUCKETS, unfolded=["x"]))
    assert parts_of(one)["what"] == "1 layer had staged data when the sync ended"


def test_an_error_says_more_than_what_it_left_staged() -> None:
    record = SyncRecord(1, "1", buckets=BUCKETS, unfolded=["x"], error="TimeoutError")
    assert session(record).subject == "sync 1"


def test_a_session_without_a_weight_proves_nothing() -> None:
    judgement = session(SyncRecord(1, "1", buckets=[()]))
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "the session was closed without any weight"
