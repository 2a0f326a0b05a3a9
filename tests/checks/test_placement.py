"""C13: layers are built and placed as before."""

from dataclasses import replace
from typing import Any

import pytest

from syncguard.checks.placement import placement
from syncguard.verdict import Coverage, Reason
from tests.checks.factories import an_engine_layer, fails, parts_of, passes, silent

ROWS = (an_engine_layer("q.weight"), an_engine_layer("q.weight", rank=1))


def test_the_same_table_passes() -> None:
    judgement = placement(ROWS, ROWS[::-1])
    assert passes(judgement, 2)
    assert judgement.message == "2 layers are built and placed as before"
    assert placement(ROWS[:1], ROWS[:1]).message == "1 layer is built and placed as before"


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"kernel": "Other"}, "kernel 'Kernel' became 'Other'"),
    ({"method": "Other"}, "method 'Mxfp8Method' became 'Other'"),
    ({"grid": "bf16"}, "grid 'mxfp8' became 'bf16'"),
    ({"activations": "bf16"}, "activations 'mxfp8' became 'bf16'"),
    ({"parts": ("k",)}, "parts ('q.weight',) became ('k',)"),
    (
        {"kernel": "A", "grid": "bf16"},
        "kernel 'Kernel' became 'A'; grid 'mxfp8' became 'bf16'",
    ),
]


@pytest.mark.parametrize(("change", "told"), CHANGES)
def test_any_change_of_a_layer_is_named_with_its_rank(change: dict[str, Any], told: str) -> None:
    judgement = placement(ROWS, [ROWS[0], replace(ROWS[1], **change)])
    assert fails(judgement, "rank1:q")
    assert judgement.evidence == (("rank1:q", told),)
    assert judgement.coverage == Coverage(2, 2)
    parts = parts_of(judgement)
    assert parts["what"] == "the sync changed how 1 layer is built or placed"
    assert parts["where"] == "rank1:q"
    assert parts["got"] == f"rank1:q: {told}"


def test_layers_that_came_or_went_are_named() -> None:
    gone = placement(ROWS, ROWS[:1])
    assert gone.evidence == (("rank1:q", "is gone"),)
    assert gone.coverage == Coverage(1, 2)
    new = placement(ROWS[:1], [*ROWS, an_engine_layer("k.weight")])
    assert new.evidence == (("rank0:k", "is new"), ("rank1:q", "is new"))
    assert parts_of(new)["what"] == "the sync changed how 2 layers are built or placed"
    assert parts_of(new)["where"] == "rank0:k, rank1:q"


@pytest.mark.parametrize(("before", "after"), [([], ROWS), (ROWS, [])])
def test_no_table_is_missing_input(before: Any, after: Any) -> None:
    judgement = placement(before, after)
    assert silent(judgement, Reason.MISSING_INPUT)
    assert judgement.message == "the engine reported no layers"
