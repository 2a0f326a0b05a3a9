"""What ranks hold of a weight adds up to the weight, and a wrong part is named by its rank."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.engines.merging import merge_prints, merge_rows
from syncguard.fingerprint import row_prints, value_print
from syncguard.grids import quantize
from syncguard.observations import Place, Unreadable, WeightPrint
from syncguard.shards import component_prints, differing_ranks, value_prints_of

NAME = "model.layers.0.o_proj.weight"
SHAPE = (12, 128)


def elements_and_scales(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    elements, scales = quantize(torch.randn(SHAPE, generator=generator).bfloat16())
    return {"elements": elements, "scales": scales}


def places(rows: int, columns: int) -> list[Place]:
    """A grid of rectangles, one a rank."""
    high, wide = SHAPE[0] // rows, SHAPE[1] // columns
    return [
        Place((r * high, (r + 1) * high), (c * wide, (c + 1) * wide), SHAPE)
        for r, c in itertools.product(range(rows), range(columns))
    ]


def answer(grid: dict[str, torch.Tensor], place: Place | None, name: str = NAME) -> WeightPrint:
    parts = {c: place.of(t).contiguous() if place else t for c, t in grid.items()}
    first = next(iter(parts.values()))
    rows = {component: component_prints(component, t, place) for component, t in parts.items()}
    return WeightPrint(
        name, "mxfp8", tuple(first.shape), rows, sum(t.nbytes for t in parts.values())
    )


@settings(deadline=None)  # the first prints are compiled
@given(st.sampled_from([(1, 2), (2, 1), (2, 2), (3, 4), (4, 1)]), st.integers(0, 50))
def test_rectangles_add_up_to_the_whole(cut: tuple[int, int], seed: int) -> None:
    grid = elements_and_scales(seed)
    held = places(*cut)
    merged = merge_prints([{NAME: answer(grid, p)} for p in held], [{NAME: p} for p in held])
    whole = merged[NAME]
    assert isinstance(whole, WeightPrint)
    np.testing.assert_array_equal(whole.rows["elements"], row_prints(grid["elements"]))
    np.testing.assert_array_equal(whole.rows["scales"], row_prints(grid["scales"], granule=1))
    assert (whole.shape, whole.nbytes) == (SHAPE, sum(t.nbytes for t in grid.values()))
    assert [shard.rank for shard in whole.shards] == list(range(len(held)))


def test_what_several_ranks_hold_is_a_copy_each() -> None:
    grid = elements_and_scales(0)
    merged = merge_prints([{NAME: answer(grid, None)}] * 2, [{}, {}])
    assert list(merged) == [NAME, f"{NAME}@rank1"]
    assert all(copy.weight == NAME for copy in merged.values())


def test_parts_of_a_vector_add_up() -> None:
    vector = torch.randn(64).bfloat16()
    held = [Place((0, 1), (0, 32), (64,)), Place((0, 1), (32, 64), (64,))]
    answers: list[dict[str, Any]] = [
        {
            "bias": WeightPrint(
                "bias", "bf16", (32,), {"values": component_prints("values", part, place)}, 64
            )
        }
        for part, place in zip(vector.tensor_split(2), held, strict=True)
    ]
    merged = merge_prints(answers, [{"bias": place} for place in held])["bias"]
    assert isinstance(merged, WeightPrint)
    assert merged.rows["values"].tolist() == row_prints(vector).tolist()


@pytest.mark.parametrize("silent", [0, 1])
def test_a_part_that_is_missing_or_unreadable_leaves_no_answer(silent: int) -> None:
    grid, held = elements_and_scales(0), places(2, 1)
    answers: list[dict[str, Any]] = [{NAME: answer(grid, place)} for place in held]
    where = [{NAME: place} for place in held]
    answers[silent] = {NAME: Unreadable(NAME, "it is packed")}
    merged = merge_prints(answers, where)[NAME]
    assert isinstance(merged, Unreadable)
    assert merged.why == f"rank {silent}: it is packed"
    answers[silent] = {}
    merged = merge_prints(answers, where)[NAME]
    assert isinstance(merged, Unreadable)
    assert merged.why == "ranks hold 768 of its 1536 elements"


@settings(deadline=None)
@given(st.sampled_from([(1, 2), (2, 1), (2, 2)]), st.data())
def test_a_wrong_part_is_named_by_its_rank(cut: tuple[int, int], data: st.DataObject) -> None:
    right, wrong, held = elements_and_scales(0), elements_and_scales(1), places(*cut)
    stale = data.draw(st.integers(0, len(held) - 1))
    answers = [{NAME: answer(wrong if r == stale else right, p)} for r, p in enumerate(held)]
    merged = merge_prints(answers, [{NAME: place} for place in held])
    whole = answer(right, None).rows
    found = differing_ranks(merged, {NAME: whole}.get, lambda _, place: answer(right, place).rows)
    assert found == {NAME: (stale,)}
    healthy = merge_prints([{NAME: answer(right, p)} for p in held], [{NAME: p} for p in held])
    assert differing_ranks(healthy, {NAME: whole}.get, lambda *_: whole) == {}


def test_parts_of_values_add_up_whatever_the_sign_of_zero() -> None:
    values = torch.randn(4, 128).bfloat16()
    values[1, 70] = -0.0
    held = [Place((0, 4), (0, 64), (4, 128)), Place((0, 4), (64, 128), (4, 128))]
    total = sum(value_prints_of(place.of(values).contiguous(), place) for place in held)
    np.testing.assert_array_equal(total, value_print(values))


@pytest.mark.parametrize("cut", [(2, 1), (1, 2), (2, 2)])
def test_rows_are_put_together(cut: tuple[int, int]) -> None:
    grid, held, rows = elements_and_scales(3), places(*cut), [1, 7, 11]
    answers = [
        {
            name: place.of(tensor)[[r - place.rows[0] for r in rows if r in range(*place.rows)]]
            for name, tensor in grid.items()
        }
        for place in held
    ]
    found = merge_rows(answers, held, rows)
    for name, tensor in grid.items():
        wanted = tensor[rows].view(torch.uint8)
        assert torch.equal(found[name].view(torch.uint8), wanted)
