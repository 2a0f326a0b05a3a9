"""What fingerprints promise: layouts do not matter, every difference does, and it can be found."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard._fingerprint_reference import row_print
from syncguard.fingerprint import (
    GRANULE,
    block_prints,
    combined,
    differing_blocks,
    fingerprint,
    row_prints,
    value_print,
)

DTYPES = (
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.int32,
    torch.bool,
)

# The first example of a test may compile a kernel.
unhurried = settings(deadline=None)


def random_octets(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


@st.composite
def weights(draw: st.DrawFn, least: int = 1, unit: int = 1) -> torch.Tensor:
    """Draw bytes [rows, columns]; few values, so that rows and granules repeat."""
    rows = draw(st.integers(least, 6))
    columns = unit * draw(st.integers(max(1, least), 40))
    octets = random_octets((rows, columns), draw(st.integers(0, 2**32)))
    return octets % draw(st.sampled_from([2, 3, 255]))


def granules_of(octets: torch.Tensor) -> list[int]:
    width = octets.shape[-1]
    return [size for size in (1, 2, 4, 8) if width % size == 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 7, 8, 33, 200])
def test_rows_of_any_dtype_are_their_bytes(dtype: torch.dtype, columns: int) -> None:
    octets = random_octets((3, columns * dtype.itemsize), seed=columns)
    if dtype == torch.bool:
        octets %= 2
    tensor = octets.view(dtype)
    size = max(granules_of(octets))
    expected = [row_print(row.numpy().tobytes(), size) for row in octets]
    assert row_prints(tensor).tolist() == expected
    assert row_prints(tensor.view(3, 1, columns)).tolist() == expected
    assert row_prints(tensor[0]).tolist() == expected[:1]


def test_views_are_printed_like_their_copies() -> None:
    whole = random_octets((4, 6, 48), seed=1).view(torch.bfloat16)
    views = [
        whole[:, 1:5],
        whole[:, :, 8:16],
        whole.transpose(0, 1),
        whole.mT,
        whole[::2, 1::2, ::3],
        whole[0].expand(5, 6, 24),
        whole[1:2, :, 3:4],
        whole[0, 0],
        whole[0, :, 0],
        whole[0, 0, 0],
        whole[0].T[:, :1],
        whole[0].T[:1],
    ]
    for view in views:
        copy = view.clone(memory_format=torch.contiguous_format)
        np.testing.assert_array_equal(row_prints(view), row_prints(copy), strict=True)
        np.testing.assert_array_equal(value_print(view), value_print(copy), strict=True)


@pytest.mark.parametrize(
    ("shape", "rows"), [((0,), 1), ((0, 8), 0), ((4, 0), 4), ((2, 0, 3), 0), ((2, 3, 0), 6)]
)
def test_nothing_is_zero(shape: tuple[int, ...], rows: int) -> None:
    tensor = torch.empty(shape)
    np.testing.assert_array_equal(row_prints(tensor), np.zeros(rows, np.uint64), strict=True)
    assert fingerprint(tensor) == 0


def test_gradients_do_not_matter() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 4))
    assert fingerprint(parameter) == fingerprint(torch.ones(2, 4))


@unhurried
@given(weights(), st.randoms(use_true_random=False))
def test_rows_may_be_stored_in_any_order(octets: torch.Tensor, random: Any) -> None:
    order = list(range(len(octets)))
    random.shuffle(order)
    np.testing.assert_array_equal(row_prints(octets[order]), row_prints(octets)[order])


@unhurried
@given(weights(), st.data())
def test_shards_of_rows_follow_one_another_and_add_up(
    octets: torch.Tensor, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(octets)))
    whole, top, bottom = (row_prints(part) for part in (octets, octets[:cut], octets[cut:]))
    np.testing.assert_array_equal(np.concatenate([top, bottom]), whole)
    total = combined(top) + combined(bottom, first=cut)
    assert total % 2**64 == combined(whole) == fingerprint(octets)


@unhurried
@given(weights(unit=8), st.sampled_from([1, 2, 4, 8]), st.data())
def test_shards_of_columns_add_up(octets: torch.Tensor, granule: int, data: st.DataObject) -> None:
    width = octets.shape[1]
    cuts = data.draw(st.lists(st.integers(0, width // granule), max_size=3).map(sorted))
    edges = [0, *(cut * granule for cut in cuts), width]
    total = np.zeros(len(octets), np.uint64)
    for first, last in itertools.pairwise(edges):
        total += row_prints(octets[:, first:last], granule=granule, first=first)
    whole = row_prints(octets, granule=granule)
    np.testing.assert_array_equal(total, whole)
    assert combined(total) == combined(whole)


@unhurried
@given(weights(), st.data())
def test_a_single_bit_changes_its_row_and_the_whole(
    octets: torch.Tensor, data: st.DataObject
) -> None:
    row = data.draw(st.integers(0, octets.shape[0] - 1))
    column = data.draw(st.integers(0, octets.shape[1] - 1))
    granule = data.draw(st.sampled_from(granules_of(octets)))
    changed = octets.clone()
    changed[row, column] ^= 1 << data.draw(st.integers(0, 7))
    differ = row_prints(changed, granule=granule) != row_prints(octets, granule=granule)
    assert np.flatnonzero(differ).tolist() == [row]
    assert fingerprint(changed) != fingerprint(octets)


@unhurried
@given(weights(least=2), st.data())
def test_a_swap_of_unequal_elements_is_seen(octets: torch.Tensor, data: st.DataObject) -> None:
    places = st.integers(0, octets.numel() - 1)
    one, other = data.draw(places), data.draw(places)
    granule = data.draw(st.sampled_from(granules_of(octets)))
    swapped = octets.clone().view(-1)
    swapped[[one, other]] = swapped[[other, one]]
    swapped = swapped.view(octets.shape)
    rows = (swapped != octets).any(1).numpy()
    differ = row_prints(swapped, granule=granule) != row_prints(octets, granule=granule)
    np.testing.assert_array_equal(differ, rows)
    assert (fingerprint(swapped) != fingerprint(octets)) == rows.any()


@unhurried
@given(weights(least=2), st.data())
def test_a_shift_is_seen(octets: torch.Tensor, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, 1))
    step = data.draw(st.integers(1, octets.shape[axis] - 1))
    shifted = octets.roll(step, axis)
    changed = not torch.equal(shifted, octets)
    rows = (shifted != octets).any(1).numpy()
    np.testing.assert_array_equal(row_prints(shifted) != row_prints(octets), rows)
    assert (fingerprint(shifted) != fingerprint(octets)) == changed


@unhurried
@given(weights(least=2, unit=16), st.sampled_from([1, 4, 8]))
def test_exchanged_shards_are_seen(octets: torch.Tensor, granule: int) -> None:
    # Two ranks hold each other's columns: each prints its own from where its should begin.
    left, right = octets.chunk(2, dim=1)
    half = left.shape[1]
    total = row_prints(right, granule=granule) + row_prints(left, granule=granule, first=half)
    rows = (left != right).any(1).numpy()
    np.testing.assert_array_equal(total != row_prints(octets, granule=granule), rows)
    # And each other's rows.
    if len(octets) % 2 == 0:
        top, bottom = octets.chunk(2)
        exchanged = fingerprint(torch.cat([bottom, top]))
        assert (exchanged != fingerprint(octets)) == (not torch.equal(top, bottom))


def test_zeros_are_not_nothing() -> None:
    # A truncated row, and rows of zeros in another number, must not look alike.
    lengths = {int(row_prints(torch.zeros(n, dtype=torch.uint8))[0]) for n in range(0, 64, 8)}
    heights = {fingerprint(torch.zeros(n, 8)) for n in range(8)}
    assert len(lengths) == len(heights) == 8


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16, torch.float32]
)
def test_values_differ_from_bytes_only_in_the_sign_of_zero(dtype: torch.dtype) -> None:
    bits = 8 * dtype.itemsize
    integers = {8: torch.uint8, 16: torch.int16, 32: torch.int32}[bits]
    patterns = torch.arange(1 << min(bits, 16), dtype=torch.int64) << max(0, bits - 16)
    values = patterns.to(torch.int32).to(integers).view(dtype).view(-1, 1)
    negative_zero = (values == 0).view(-1) & (patterns != 0)
    assert negative_zero.sum() == 1
    bytewise, valuewise = row_prints(values), value_print(values)
    np.testing.assert_array_equal(bytewise != valuewise, negative_zero.numpy())
    assert valuewise[negative_zero] == valuewise[0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e8m0fnu, torch.uint8])
def test_dtypes_without_a_negative_zero_are_printed_as_bytes(dtype: torch.dtype) -> None:
    octets = torch.arange(256, dtype=torch.uint8).view(-1, 1)
    np.testing.assert_array_equal(value_print(octets.view(dtype)), row_prints(octets))


def test_values_that_share_a_byte_are_refused() -> None:
    packed = torch.zeros(2, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(ValueError, match="float4_e2m1fn_x2 has two zeros in half a byte: dequan"):
        value_print(packed)


@pytest.mark.parametrize(
    ("columns", "granule", "first"), [(12, 8, 0), (16, 8, 4), (16, 3, 0), (8, 16, 0), (7, 2, 0)]
)
def test_a_row_that_is_not_whole_granules_is_refused(
    columns: int, granule: int, first: int
) -> None:
    octets = torch.zeros(2, columns, dtype=torch.uint8)
    with pytest.raises(ValueError, match="is not a whole number of granules of") as caught:
        row_prints(octets, granule=granule, first=first)
    assert f"a row of {columns} bytes from byte {first} " in str(caught.value)
    assert "give a granule of 1, 2, 4 or 8 bytes" in str(caught.value)


@unhurried
@given(weights(unit=2), st.integers(1, 50), st.booleans(), st.data())
def test_blocks_add_up_to_their_row(
    octets: torch.Tensor, block: int, as_vector: bool, data: st.DataObject
) -> None:
    tensor = octets.view(torch.bfloat16)
    tensor = tensor[0] if as_vector else tensor
    count = 1 if as_vector else len(tensor)
    rows = data.draw(st.lists(st.integers(0, count - 1), max_size=4))
    first = 2 * data.draw(st.integers(0, 9))
    blocks = block_prints(tensor, rows, block, granule=2, first=first)
    columns = tensor.shape[-1]
    assert blocks.shape == (len(rows), -(-columns // block))
    prints = row_prints(tensor, granule=2, first=first)
    np.testing.assert_array_equal(blocks.sum(axis=1, dtype=np.uint64), prints[rows])
    for index, start in enumerate(range(0, columns, block)):
        part = tensor[..., start : start + block]
        expected = row_prints(part, granule=2, first=first + 2 * start)[rows]
        np.testing.assert_array_equal(blocks[:, index], expected)


@unhurried
@given(st.data())
def test_a_difference_is_found_by_its_row_and_block(data: st.DataObject) -> None:
    mine = random_octets((2, 5, 192), seed=3).view(torch.bfloat16)
    theirs = mine.clone()
    row, column = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 95))
    place = row // 5, row % 5, column
    theirs[place] = 2.0 if mine[place] != 2.0 else 4.0
    # All that crosses between the sides: row prints, row numbers, block prints.
    rows = np.flatnonzero(row_prints(mine) != row_prints(theirs)).tolist()
    (found,) = differing_blocks(block_prints(mine, rows), block_prints(theirs, rows), rows)
    assert found == (row, slice(column // 32 * 32, column // 32 * 32 + 32))


def test_blocks_of_views_are_those_of_their_copies() -> None:
    whole = random_octets((8, 96), seed=6).view(torch.bfloat16)
    for view in (whole.T, whole.T[:, :1], whole[:, 3:19], whole[::2, ::3]):
        copy = view.clone(memory_format=torch.contiguous_format)
        expected = block_prints(copy, [2, 0], 4, granule=2)
        np.testing.assert_array_equal(block_prints(view, [2, 0], 4, granule=2), expected)


def test_blocks_of_values_do_not_see_the_sign_of_zero() -> None:
    mine = torch.zeros(2, 64, dtype=torch.bfloat16)
    theirs = mine.clone()
    theirs[1, 40] = -0.0
    values = [block_prints(side, [1], values=True) for side in (mine, theirs)]
    assert differing_blocks(values[0], values[1], [1]) == []
    held = [block_prints(side, [1]) for side in (mine, theirs)]
    assert differing_blocks(held[0], held[1], [1]) == [(1, slice(32, 64))]


@pytest.mark.parametrize("row", [-1, 2])
def test_rows_that_are_not_there_are_refused(row: int) -> None:
    with pytest.raises(ValueError, match=rf"rows \[{row}\] of a tensor with 2 rows"):
        block_prints(torch.zeros(2, 64), [row])


def test_blocks_that_cut_a_granule_are_refused() -> None:
    with pytest.raises(ValueError, match="in blocks of 3 is not a whole number of granules of 8"):
        block_prints(torch.zeros(2, 64, dtype=torch.uint8), [0], 3)


def test_blocks_of_different_sides_are_refused() -> None:
    blocks = np.zeros((2, 3), np.uint64)
    with pytest.raises(ValueError, match=r"prints of \(2, 3\) and \(2, 2\) blocks for 2 rows"):
        differing_blocks(blocks, blocks[:, :2], [0, 1])
    with pytest.raises(ValueError, match="must print the same rows in the same blocks"):
        differing_blocks(blocks, blocks, [0])


def test_the_granule_is_the_largest_that_divides_a_row() -> None:
    octets = random_octets((1, 24), seed=5)
    assert row_prints(octets) == row_prints(octets, granule=GRANULE)
    assert row_prints(octets[:, :20]) == row_prints(octets[:, :20], granule=4)
    assert row_prints(octets[:, :23]) == row_prints(octets[:, :23], granule=1)
