"""C8: weights after requests are those of the sync."""

from typing import Any

import pytest

from syncguard.checks.use import fresh_at_use
from syncguard.observations import Unreadable
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import Answer, a_record, fails, low, plain, printed, silent

PRINTS: dict[str, Answer] = {
    "q": printed("q", low()),
    "n": printed("n", plain(8)),
    "p": Unreadable("p", "packed"),
}  # fmt: skip


def test_unchanged_weights_pass() -> None:
    judgement = fresh_at_use(a_record(), PRINTS, dict(PRINTS), "2")
    nbytes = printed("q", low()).nbytes + printed("n", plain(8)).nbytes
    assert judgement.status is Status.PASS
    assert judgement.coverage == Coverage(2, 3, nbytes, nbytes)
    assert fresh_at_use(a_record(), PRINTS, dict(PRINTS), None).status is Status.PASS


@pytest.mark.parametrize(
    "after", [printed("q", low(seed=1)), printed("q", plain(8, 64)), Unreadable("q", ""), None]
)
def test_a_weight_that_was_rewritten_is_named(after: Any) -> None:
    later = {**PRINTS, "q": after}
    judgement = fresh_at_use(a_record(), PRINTS, later, "2")
    assert fails(judgement, "q")
    assert judgement.evidence == (("q", "was rewritten after the sync"),)


def test_a_version_that_changed_is_named() -> None:
    judgement = fresh_at_use(a_record(), PRINTS, dict(PRINTS), "1")
    assert fails(judgement, "version")
    assert judgement.evidence == (("version", "'2' became '1'"),)


def test_no_request_is_not_applicable_and_no_weight_missing_input() -> None:
    for broken, later in ((a_record(error="x"), PRINTS), (a_record(), None)):
        judgement = fresh_at_use(broken, PRINTS, later, "2")
        assert silent(judgement, Reason.NOT_APPLICABLE)
    hidden = {"p": Unreadable("p", "packed")}
    assert silent(fresh_at_use(a_record(), hidden, hidden, "2"), Reason.MISSING_INPUT)
