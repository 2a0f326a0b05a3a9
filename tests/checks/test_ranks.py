"""C7: every rank is heard."""

import pytest

from syncguard.checks import Judgement
from syncguard.checks.ranks import all_ranks
from syncguard.verdict import Coverage, Reason
from tests.checks.factories import (
    a_record,
    an_engine_layer,
    fails,
    parts_of,
    passes,
    silent,
    written,
)


def judged(heard: list[int], wrote: list[int]) -> Judgement:
    layers = [an_engine_layer("q", rank=rank) for rank in heard]
    return all_ranks(layers, a_record(loaded=[written("q", rank=rank) for rank in wrote]))


def test_ranks_that_wrote_and_report_pass() -> None:
    judgement = judged([0, 1], [1, 0, 1])
    assert passes(judgement, 2)
    assert judgement.message == "2 ranks wrote weights and reported layers"
    assert judged([0], [0]).message == "1 rank wrote weights and reported layers"


@pytest.mark.parametrize(
    ("wrote", "got", "subject", "count"),
    [
        ([0], "rank 1, 2 wrote no weight", "rank 1", 2),
        ([0, 1, 2, 4, 3], "no layer of rank 3, 4 was reported", "rank 3", 2),
        ([0, 1, 3], "no layer of rank 3 was reported; rank 2 wrote no weight", "rank 3", 2),
    ],
)
def test_ranks_that_are_missing_on_one_side_are_named(
    wrote: list[int], got: str, subject: str, count: int
) -> None:
    judgement = judged([0, 1, 2], wrote)
    assert fails(judgement, subject, measured=count)
    assert parts_of(judgement)["got"] == got
    assert parts_of(judgement)["where"] == "sync 2"
    assert parts_of(judgement)["what"] == (
        "the ranks that took part in the sync are not those that report"
    )
    both = {0, 1, 2} & set(wrote)
    assert judgement.coverage == Coverage(len(both), len({0, 1, 2, *wrote}))


@pytest.mark.parametrize(("heard", "wrote"), [([], [0]), ([0], [])])
def test_nobody_heard_is_missing_input(heard: list[int], wrote: list[int]) -> None:
    judgement = judged(heard, wrote)
    assert silent(judgement, Reason.MISSING_INPUT)
    assert judgement.message == "no rank reported a layer, or none wrote a weight"
