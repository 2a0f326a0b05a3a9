"""C7: every rank is heard."""

import pytest

from syncguard.checks.ranks import all_ranks
from syncguard.verdict import Reason
from tests.checks.factories import (
    a_record,
    an_engine_layer,
    fails,
    parts_of,
    passes,
    silent,
    written,
)

LAYERS = tuple(an_engine_layer("q", rank=rank) for rank in (0, 1))


def test_ranks_that_wrote_and_report_pass() -> None:
    loaded = [written("q", rank=rank) for rank in (1, 0)]
    assert passes(all_ranks(LAYERS, a_record(loaded=loaded)), 2)


@pytest.mark.parametrize(
    ("wrote", "got", "subject"),
    [
        ([0], "rank 1 wrote no weight", "rank 1"),
        ([0, 1, 2], "no layer of rank 2 was reported", "rank 2"),
    ],
)
def test_a_rank_that_is_missing_on_one_side_is_named(
    wrote: list[int], got: str, subject: str
) -> None:
    loaded = [written("q", rank=rank) for rank in wrote]
    judgement = all_ranks(LAYERS, a_record(loaded=loaded))
    assert fails(judgement, subject)
    assert parts_of(judgement)["got"] == got
    assert not judgement.coverage.complete


def test_nobody_heard_is_missing_input() -> None:
    assert silent(all_ranks([], a_record(loaded=[written("q")])), Reason.MISSING_INPUT)
    assert silent(all_ranks(LAYERS, a_record()), Reason.MISSING_INPUT)
