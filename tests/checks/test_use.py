"""C8: weights after requests are those of the sync."""

from typing import Any

import pytest

from syncguard.checks.use import fresh_at_use
from syncguard.observations import SyncRecord, Unreadable
from syncguard.verdict import Coverage, Reason
from tests.checks.factories import Answer, a_record, fails, low, parts_of, plain, printed, silent

PRINTS: dict[str, Answer] = {
    "q": printed("q", low()),
    "n": printed("n", plain(8)),
    "p": Unreadable("p", "packed"),
}
NBYTES = printed("q", low()).nbytes + printed("n", plain(8)).nbytes


@pytest.mark.parametrize("version", ["2", None])
def test_unchanged_weights_pass(version: str | None) -> None:
    judgement = fresh_at_use(a_record(), PRINTS, dict(PRINTS), version)
    assert judgement.message == "2 weights are the same after requests as before"
    assert (judgement.measured, judgement.bound) == (0, 0)
    assert judgement.coverage == Coverage(2, 3, NBYTES, NBYTES)
    one = {"q": PRINTS["q"]}
    told = fresh_at_use(a_record(), one, one, version).message
    assert told == "1 weight is the same after requests as before"


@pytest.mark.parametrize(
    "after", [printed("q", low(seed=1)), printed("q", plain(8, 64)), Unreadable("q", ""), None]
)
def test_a_weight_that_was_rewritten_is_named(after: Any) -> None:
    later = {**PRINTS, "q": after}
    judgement = fresh_at_use(a_record(), PRINTS, later, "2")
    assert fails(judgement, "q")
    assert judgement.evidence == (("q", "was rewritten after the sync"),)
    assert judgement.coverage == Coverage(2, 3, NBYTES, NBYTES)
    told = parts_of(judgement)
    assert told["what"] == "1 weight changed after the sync, while the engine served"
    assert told["where"] == "q"
    assert told["got"] == "q: was rewritten after the sync"


def test_a_version_that_changed_is_named() -> None:
    judgement = fresh_at_use(a_record(), PRINTS, dict(PRINTS), "1")
    assert fails(judgement, "version")
    assert judgement.evidence == (("version", "'2' became '1'"),)


def test_all_changes_are_named() -> None:
    judgement = fresh_at_use(a_record(), PRINTS, {}, "1")
    assert [name for name, _ in judgement.evidence] == ["q", "n", "version"]
    told = parts_of(judgement)
    assert told["what"] == "3 weights changed after the sync, while the engine served"
    assert told["where"] == "q, n, version"


@pytest.mark.parametrize(("record", "later"), [(a_record(error="x"), PRINTS), (a_record(), None)])
def test_no_request_is_not_applicable(record: SyncRecord, later: dict[str, Answer] | None) -> None:
    judgement = fresh_at_use(record, PRINTS, later, "2")
    assert silent(judgement, Reason.NOT_APPLICABLE)
    assert judgement.message == "the sync failed, so no request was made"


def test_no_readable_weight_is_missing_input() -> None:
    hidden: dict[str, Answer] = {"p": Unreadable("p", "packed")}
    judgement = fresh_at_use(a_record(), hidden, hidden, "2")
    assert silent(judgement, Reason.MISSING_INPUT)
    assert judgement.message == "the engine reported no weight that can be read"
