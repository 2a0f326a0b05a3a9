"""C13: layers are built and placed as before."""

from dataclasses import replace
from typing import Any

import pytest

from syncguard.checks.placement import placement
from syncguard.verdict import Coverage, Reason
from tests.checks.factories import (
    an_engine_layer,
    fails,
    passes,
    silent,
)

ROWS = (an_engine_layer("q.weight"), an_engine_layer("q.weight", rank=1))


def test_the_same_table_passes() -> None:
    assert passes(placement(ROWS, ROWS[::-1]), 2)


@pytest.mark.parametrize(
    "change", [{"kernel": "Other"}, {"method": "Other"}, {"grid": "bf16"}, {"parts": ("k",)}]
)
def test_any_change_of_a_layer_is_named_with_its_rank(change: dict[str, Any]) -> None:
    judgement = placement(ROWS, [ROWS[0], replace(ROWS[1], **change)])
    assert fails(judgement, "rank1:q")
    assert next(iter(change)) + " " in judgement.evidence[0][1]
    assert " became " in judgement.evidence[0][1]


def test_a_layer_that_came_or_went_is_named() -> None:
    gone = placement(ROWS, ROWS[:1])
    assert gone.evidence == (("rank1:q", "is gone"),)
    assert gone.coverage == Coverage(1, 2)
    assert placement(ROWS[:1], ROWS).evidence == (("rank1:q", "is new"),)


def test_no_table_is_missing_input() -> None:
    assert silent(placement([], ROWS), Reason.MISSING_INPUT)
    assert silent(placement(ROWS, []), Reason.MISSING_INPUT)
