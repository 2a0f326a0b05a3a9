"""The kind of a difference, told from a few rows of both sides."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks.differences import (
    Difference,
    describe,
    differing_rows,
    differing_scales,
    find_row,
)
from syncguard.grids import quantize, to_grid
from tests.checks.factories import Tensors, low, plain, printed

FP8 = torch.float8_e4m3fn


def copied(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def between(mine: Tensors, theirs: Tensors, **fields: Any) -> Difference:
    rows = next(iter(mine.values())).shape[0]
    return Difference("q", np.arange(rows), rows, tuple(range(rows)), mine, theirs, **fields)


def flipped(tensors: Tensors, component: str, index: tuple[int, ...], bits: int = 1) -> Tensors:
    changed = copied(tensors)
    changed[component].view(torch.uint8)[index] ^= bits
    return changed


@pytest.mark.parametrize("pattern", [0xA5, 0x5A])
@pytest.mark.parametrize("component", ["elements", "scales"])
def test_a_poison_pattern_that_is_left_is_named(pattern: int, component: str) -> None:
    mine, theirs = low(), copied(low())
    theirs[component].view(torch.uint8).fill_(pattern)
    told = f"100% of the {component} still hold the poison pattern 0x{pattern:02X}"
    assert describe(between(mine, theirs)) == told


def test_most_of_a_pattern_is_enough_and_half_of_it_is_not() -> None:
    mine = plain(2, 32)
    for columns, told in ((17, "53% of the values still hold the poison pattern 0xA5"), (16, "")):
        theirs = copied(mine)
        theirs["values"].view(torch.uint8)[:, : 2 * columns] = 0xA5
        described = describe(between(mine, theirs))
        assert described == told if told else "of the bytes of the sampled rows" in described


def test_another_byte_all_over_is_no_poison() -> None:
    theirs = copied(low())
    theirs["elements"].view(torch.uint8).fill_(0x38)
    assert "poison" not in describe(between(low(), theirs))


def test_the_origin_of_a_row_says_most() -> None:
    origin = "row 3 of the learner's k, version 2"
    difference = between(low(), low(seed=1), origin=origin)
    assert describe(difference) == f"holds {origin}"


def test_rows_that_cannot_be_fetched_are_told_so() -> None:
    difference = between(low(), {})
    assert describe(difference) == "these rows cannot be fetched for a closer look"
    assert difference.values_differ
    assert not difference.neutral


def test_components_that_differ_are_named() -> None:
    assert describe(between(low(), plain(8, 64))) == (
        "the learner holds elements+scales, the engine values"
    )


def test_shapes_that_differ_are_told() -> None:
    assert describe(between(plain(4, 64), plain(4, 32))) == "the shapes differ"
    assert describe(between(low(4), low(8))) == "the shapes differ"
    assert between(low(4), low(8)).values_differ
    assert not between(low(4), low(8)).only_zero_blocks


def zeroed(rows: int = 4) -> Tensors:
    tensors = low(rows)
    tensors["elements"][1, 32:] = torch.tensor([0.0, -0.0]).repeat(16).to(FP8)
    return tensors


def test_scales_of_all_zero_blocks_are_harmless() -> None:
    difference = between(zeroed(), flipped(zeroed(), "scales", (1, 1)))
    assert difference.only_zero_blocks
    assert difference.neutral
    assert not difference.values_differ
    assert describe(difference) == "only the scales of all-zero blocks differ"


def test_scales_of_another_shape_are_not_harmless() -> None:
    mine = low(4)
    mine["elements"].view(torch.uint8).zero_()
    assert not between(mine, {**mine, "scales": mine["scales"][:, :1]}).only_zero_blocks


def test_values_below_the_smallest_bf16_number_are_told_apart() -> None:
    mine = low()
    mine["scales"].zero_()
    mine["elements"].view(torch.uint8).zero_()
    assert between(mine, flipped(mine, "elements", (2, 3))).values_differ


def test_eight_bits_are_compared_with_more() -> None:
    eight = plain(4, 32)["values"].to(FP8)
    assert between({"values": eight}, {"values": eight.bfloat16()}).neutral
    assert between({"values": eight}, {"values": -eight.bfloat16()}).values_differ


@pytest.mark.parametrize(
    ("component", "index"), [("scales", (1, 0)), ("elements", (1, 40)), ("scales", (0, 1))]
)
def test_anything_else_beside_them_is_not(component: str, index: tuple[int, ...]) -> None:
    theirs = flipped(flipped(zeroed(), "scales", (1, 1)), component, index)
    difference = between(zeroed(), theirs)
    assert not difference.only_zero_blocks
    assert not difference.neutral


def test_the_same_values_in_another_encoding() -> None:
    mine = low()
    mine["elements"][0, :32] = torch.tensor([1.0, -2.0, 4.0, 0.5]).repeat(8).to(FP8)
    theirs = copied(mine)
    theirs["elements"][0, :32] = (mine["elements"][0, :32].float() / 2).to(FP8)
    theirs["scales"][0, 0] += 1
    difference = between(mine, theirs)
    assert describe(difference) == "the same values in another encoding"
    assert not difference.values_differ
    assert not difference.neutral


@pytest.mark.parametrize(("step", "word"), [(1, "high"), (-1, "low")])
def test_scales_one_exponent_off(step: int, word: str) -> None:
    mine, theirs = low(), copied(low())
    theirs["scales"][:, 0] += step
    told = f"scales one exponent {word} (8 scales of the sampled rows)"
    assert describe(between(mine, theirs)) == told
    one = copied(mine)
    one["scales"][2, 1] += step
    assert describe(between(mine, one)) == (
        f"scales one exponent {word} (1 scale of the sampled rows)"
    )


@pytest.mark.parametrize("steps", [(1, -1), (2, 2), (-2, -2)])
def test_scales_of_other_weights(steps: tuple[int, int]) -> None:
    mine, theirs = low(), copied(low())
    theirs["scales"][0, 0] += steps[0]
    theirs["scales"][1, 0] += steps[1]
    told = "the scales are those of other weights (2 scales of the sampled rows)"
    assert describe(between(mine, theirs)) == told


def test_elements_under_the_same_scales() -> None:
    theirs = flipped(flipped(low(), "elements", (0, 0), 0x80), "elements", (3, 5), 0x80)
    told = "elements differ under the same scales (2 elements of the sampled rows)"
    assert describe(between(low(), theirs)) == told


def test_the_floor_rule_is_recognized_by_scales_one_lower() -> None:
    """Blocks whose maximum is above 448/512 of a power of two get another scale by each rule."""
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    mine, theirs = (
        dict(zip(("elements", "scales"), quantize(weight, rule=rule), strict=True))
        for rule in ("round_up", "floor")
    )
    told = describe(between(mine, theirs))
    assert told.startswith("scales rounded down: a floor or even rule instead of round-up (")
    back = describe(between(theirs, mine))
    assert back.startswith("scales rounded up too far (")


def test_other_weights() -> None:
    told = describe(between(low(), low(seed=9)))
    assert told.startswith("other weights (")
    assert re.search(r"\(\d+ scales, \d+ elements of the sampled rows\)$", told)


def test_bytes_of_a_weight_without_scales_are_counted() -> None:
    theirs = flipped(plain(4, 32), "values", (1, 3))
    told = "0.4% of the bytes of the sampled rows differ"
    assert describe(between(plain(4, 32), theirs)) == told


def test_a_scalar_buffer_can_be_described() -> None:
    mine, theirs = {"values": torch.tensor(1.0)}, {"values": torch.tensor(2.0)}
    difference = Difference("k_scale", np.arange(1), 1, (0,), mine, theirs)
    assert describe(difference) == "50.0% of the bytes of the sampled rows differ"


def test_the_same_values_in_a_wider_format_are_harmless() -> None:
    mine = plain(4, 32)
    difference = between(mine, {"values": mine["values"].float()})
    assert difference.other_format
    assert difference.neutral
    wide = mine["values"].float()
    wide[0, 0] += 1
    difference = between(mine, {"values": wide})
    assert not difference.neutral
    assert describe(difference) == "other values, as torch.float32 instead of torch.bfloat16"


def test_the_same_values_in_the_same_format_are_not_another_format() -> None:
    mine = {"values": torch.zeros(2, 2)}
    difference = between(mine, {"values": -mine["values"]})
    assert not difference.values_differ
    assert not difference.other_format


def test_integers_are_compared_exactly() -> None:
    mine, theirs = {"values": torch.tensor([2**60])}, {"values": torch.tensor([2**60 + 1])}
    assert between(mine, theirs).values_differ


def test_double_precision_is_compared_exactly() -> None:
    mine = {"values": torch.ones(1, dtype=torch.float64)}
    theirs = {"values": torch.ones(1, dtype=torch.float64) + 2**-50}
    assert between(mine, theirs).values_differ


def test_a_nan_equals_a_nan_and_nothing_else() -> None:
    nan = {"values": torch.tensor([torch.nan, 1.0])}
    other = {"values": torch.tensor([-torch.nan, 1.0])}
    assert not between(nan, other).values_differ
    assert between(nan, {"values": torch.tensor([0.0, 1.0])}).values_differ
    assert between({"values": torch.tensor([0.0, 1.0])}, nan).values_differ


def test_few_rows_are_not_narrowed() -> None:
    difference = between(low(8), low(8, seed=1))
    assert difference.narrowed(8) is difference


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)))
def test_narrowing_keeps_the_worst_rows(values: set[int], encodings: set[int]) -> None:
    """Rows with other values come first, then other encodings of zero, then harmless ones."""
    mine = low(20, 64)
    mine["elements"][:, :32] = 0
    theirs = copied(mine)
    theirs["scales"][:, 0] = 1
    for row in encodings:
        theirs["elements"].view(torch.uint8)[row, 3] = 0x80
    for row in values:
        theirs["elements"].view(torch.uint8)[row, 40] ^= 0x80
    found = between(mine, theirs).narrowed(4)
    order = [*sorted(values), *sorted(encodings - values), *range(20)]
    wanted = list(dict.fromkeys(order))[:4]
    assert list(found.sampled) == wanted
    assert torch.equal(found.engine["scales"], theirs["scales"][wanted])
    assert torch.equal(
        found.learner["elements"].view(torch.uint8), mine["elements"].view(torch.uint8)[wanted]
    )
    assert found.values_differ == bool(values)
    assert found.neutral == (not values and not encodings)


def test_narrowing_a_weight_without_scales_keeps_other_values() -> None:
    mine = plain(20, 32)
    theirs = copied(mine)
    theirs["values"][17, 0] += 1
    found = between(mine, theirs).narrowed(2)
    assert found.sampled == (17, 0)


def test_differing_rows_are_those_in_which_any_component_differs() -> None:
    mine = low(6)
    theirs = flipped(flipped(mine, "elements", (1, 0)), "scales", (4, 1))
    rows = differing_rows(printed("q", mine), printed("q", theirs))
    assert rows is not None
    assert rows.tolist() == [1, 4]
    same = differing_rows(printed("q", mine), printed("q", mine))
    assert same is not None
    assert same.size == 0


def test_other_forms_have_no_differing_rows() -> None:
    assert differing_rows(printed("q", low()), printed("q", plain(8, 64))) is None
    assert differing_rows(printed("q", low(8)), printed("q", low(4))) is None


def prints_of(row: int, tensors: Tensors) -> dict[str, int]:
    return {name: int(values[row]) for name, values in printed("q", tensors).rows.items()}


def test_a_row_is_found_in_its_own_weight_first_then_elsewhere_then_in_earlier_versions() -> None:
    now = {"a": printed("a", low(4, seed=1)), "q": printed("q", low(4, seed=2))}
    old = {"a": printed("a", low(4, seed=3)), "q": printed("q", low(4, seed=4))}
    older = {"q": printed("q", low(4, seed=3))}
    candidates = {"this version": now, "version 2": old, "version 1": older}

    def found(row: int, seed: int) -> str:
        return find_row(prints_of(row, low(4, seed=seed)), candidates, "q")

    assert found(3, seed=2) == "row 3 of the learner's q, this version"
    assert found(2, seed=1) == "row 2 of the learner's a, this version"
    assert found(1, seed=4) == "row 1 of the learner's q, version 2"
    assert found(0, seed=3) == "row 0 of the learner's a, version 2"
    assert found(0, seed=9) == ""


def test_the_own_weight_comes_before_others_that_hold_the_same_row() -> None:
    same = printed("x", low(4, seed=1))
    both = {"this version": {"a": same, "q": replace(same, weight="q")}}
    assert "learner's q," in find_row(prints_of(0, low(4, seed=1)), both, "q")


def test_a_row_needs_all_of_its_components() -> None:
    stale = flipped(low(4, seed=1), "scales", (0, 0), 0x10)
    mixed = prints_of(0, low(4, seed=1)) | {"scales": prints_of(0, stale)["scales"]}
    now = {
        "q": printed("q", low(4, seed=1)),
        "k": printed("k", {**low(4, seed=2), "scales": stale["scales"]}),
        "bf16": printed("bf16", plain(4, 64)),
    }
    assert find_row(mixed, {"this version": now}, "q") == ""


def test_a_known_reason_is_told_in_place_of_a_guess() -> None:
    mine = low()
    theirs = flipped(mine, "elements", (0, 0), 0x80)
    assert describe(between(mine, theirs, reason="it rained")) == "it rained"
    same = copied(mine)
    mine["elements"].view(torch.uint8)[0, 0] = 0x00
    same["elements"].view(torch.uint8)[0, 0] = 0x80  # zero, with a sign
    told = describe(between(mine, same, reason="it rained"))
    assert told == "the same values in another encoding: it rained"
    assert describe(between(mine, theirs, origin="row 1", reason="it rained")) == "holds row 1"


def int8(seed: int = 0) -> Tensors:
    weight = torch.randn(4, 24, generator=torch.Generator().manual_seed(seed))
    weight[1] = 0
    elements, scales = to_grid(weight, "int8")
    assert scales is not None
    return {"elements": elements, "scales": scales}


def test_int8_is_told_by_its_own_values() -> None:
    mine, theirs = int8(), flipped(int8(), "elements", (2, 3))
    difference = between(mine, theirs)
    assert difference.values_differ
    assert describe(difference) == (
        "elements differ under the same scales (1 element of the sampled rows)"
    )
    told = describe(between(mine, flipped(int8(), "scales", (2, 1))))
    assert told == "the scales are those of other weights (1 scale of the sampled rows)"
    assert describe(between(mine, int8(seed=1))).startswith("other weights (3 scales, ")


def test_the_scale_of_an_int8_row_of_zeros_is_neutral_and_of_128_is_not() -> None:
    mine, theirs = int8(), flipped(int8(), "scales", (1, 2))
    assert between(mine, theirs).only_zero_blocks
    for side in (mine, theirs):
        side["elements"][1] = -128  # whose bits below the sign are zeros
    assert not between(mine, theirs).only_zero_blocks


def eight_bits(scale: float) -> Tensors:
    """A weight on the INT8 grid, one scale a row."""
    elements = torch.arange(-32, 32, dtype=torch.int8).expand(4, 64).contiguous()
    return {"elements": elements, "scales": torch.full((4, 1), scale)}


def test_scales_that_are_no_exponents_are_not_steps_of_them() -> None:
    told = "the scales are those of other weights (4 scales of the sampled rows)"
    assert describe(between(eight_bits(1.0), eight_bits(2.0))) == told
    assert describe(between(eight_bits(2.0), eight_bits(1.0))) == told


def test_scales_are_compared_where_they_are_all_there_is() -> None:
    mine = printed("q", low())
    only = {"scales": printed("q", flipped(low(), "scales", (5, 1))).rows["scales"]}
    shown = replace(mine, rows=only)
    assert differing_scales(mine, shown).tolist() == [5]
    assert differing_scales(mine, replace(shown, shape=(8, 32))).size == 0
    assert differing_scales(mine, mine).size == 0
    assert differing_scales(printed("q", plain(8, 64)), shown).size == 0
