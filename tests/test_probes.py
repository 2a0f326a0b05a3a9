"""Identity rows make a serving path print its own weight; the other probes are what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from syncguard.fingerprint import value_print
from syncguard.grids import dequantize, quantize
from syncguard.observations import ProbeTurn
from syncguard.probes import (
    block_rows,
    exact_prints,
    flushed,
    identity_rows,
    narrowed,
    random_rows,
    turn_rows,
    unit_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def serving(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A linear serving path that rounds its activations to MXFP8, as the native kernels do."""

    def serve(rows: torch.Tensor) -> torch.Tensor:
        padding = -rows.shape[1] % 32
        padded = torch.nn.functional.pad(rows, (0, padding))
        rounded = dequantize(*quantize(padded), dtype=torch.float32)
        return (rounded[:, : rows.shape[1]] @ weight.float().T).to(rows.dtype)

    return serve


def a_weight(outputs: int, features: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(features)
    return torch.randn(outputs, features, generator=generator).to(dtype)


@pytest.mark.parametrize("features", [1, 32, 256, 257])
@pytest.mark.parametrize("chunk", [1, 100, 256])
def test_identity_rows_make_up_the_identity(features: int, chunk: int) -> None:
    firsts, rows = zip(*identity_rows(features, torch.bfloat16, chunk), strict=True)
    assert all(0 < len(part) <= chunk for part in rows)
    assert list(firsts) == np.cumsum([0, *map(len, rows)])[:-1].tolist()
    torch.testing.assert_close(torch.cat(rows), torch.eye(features, dtype=torch.bfloat16))


# 300 features take two chunks; 33 bfloat16 elements are not whole granules of 8 bytes.
@pytest.mark.parametrize("features", [1, 33, 64, 300, 512])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_exact_prints_are_those_of_the_weight(features: int, dtype: torch.dtype) -> None:
    weight = a_weight(9, features, dtype)
    prints = exact_prints(serving(weight), features, dtype)
    np.testing.assert_array_equal(prints, value_print(weight), strict=True)


@pytest.mark.parametrize("column", [0, 255, 256, 299])
def test_exact_prints_see_one_element_off_by_the_least(column: int) -> None:
    weight = a_weight(9, 300)
    stale = weight.clone()
    stale.view(torch.int16)[4, column] += 1
    differ = exact_prints(serving(stale), 300, torch.bfloat16) != value_print(weight)
    assert np.flatnonzero(differ).tolist() == [4]


def test_exact_prints_see_exchanged_columns() -> None:
    weight = a_weight(9, 300)
    exchanged = weight.roll(150, dims=1)
    differ = exact_prints(serving(exchanged), 300, torch.bfloat16) != value_print(weight)
    assert differ.all()


def test_exact_prints_do_not_see_the_sign_of_zero() -> None:
    weight = a_weight(3, 64)
    weight[1, 5] = -0.0
    prints = exact_prints(serving(weight), 64, torch.bfloat16)
    np.testing.assert_array_equal(prints, value_print(weight))


def test_exact_prints_compare_what_is_served_in_the_models_dtype() -> None:
    weight = a_weight(9, 64)

    def serve_float32(rows: torch.Tensor) -> torch.Tensor:
        return rows.float() @ weight.float().T

    prints = exact_prints(serve_float32, 64, torch.bfloat16)
    np.testing.assert_array_equal(prints, value_print(weight))


def test_random_rows_are_the_same_on_both_sides() -> None:
    rows = random_rows(64, 256, seed=3, dtype=torch.bfloat16)
    assert rows.shape == (64, 256)
    assert rows.dtype == torch.bfloat16
    assert torch.equal(rows, random_rows(64, 256, seed=3, dtype=torch.float32).bfloat16())
    assert not torch.equal(rows, random_rows(64, 256, seed=4, dtype=torch.bfloat16))
    # 16,384 draws: the mean within 5 of its standard deviations, 1/128.
    assert rows.float().mean().abs() < 5 / 128
    assert rows.float().std() == pytest.approx(1, abs=0.05)


def test_block_rows_hold_signs_in_one_block_each() -> None:
    rows = block_rows(96, seed=1, dtype=torch.bfloat16)
    blocks = rows.view(3, 3, 32)
    torch.testing.assert_close(blocks.abs().amin(2), torch.eye(3, dtype=torch.bfloat16))
    torch.testing.assert_close(blocks.abs().amax(2), torch.eye(3, dtype=torch.bfloat16))
    assert (rows.sum(1).abs() < 32).all(), "both signs occur"
    assert torch.equal(rows, block_rows(96, seed=1, dtype=torch.bfloat16))
    assert not torch.equal(rows, block_rows(96, seed=2, dtype=torch.bfloat16))
    elements, scales = quantize(rows)
    assert torch.equal(dequantize(elements, scales), rows), "the grid holds them exactly"


def test_unit_rows_are_the_whole_identity_after_as_many_turns_as_a_block_is_long() -> None:
    turns = [unit_rows(96, turn, torch.bfloat16) for turn in range(32)]
    assert {tuple(rows.shape) for rows in turns} == {(3, 96)}
    assert torch.equal(torch.stack(turns, 1).reshape(96, 96), torch.eye(96, dtype=torch.bfloat16))
    assert torch.equal(unit_rows(96, 32, torch.bfloat16), turns[0])


def test_a_turn_is_of_sums_or_of_units() -> None:
    sums, units = (turn_rows(ProbeTurn(sums, 5), 64, torch.bfloat16) for sums in (True, False))
    assert torch.equal(sums, block_rows(64, 5, torch.bfloat16))
    assert torch.equal(units, unit_rows(64, 5, torch.bfloat16))


def test_a_wider_serving_path_prints_the_same_values_alike() -> None:
    """A router in float32 serves weights that the learner holds in bf16."""
    weight = torch.randn(8, 300, generator=torch.Generator().manual_seed(5)).bfloat16()
    prints = exact_prints(serving(weight.float()), 300, torch.float32)
    assert (prints == value_print(weight)).all()
    assert (prints == value_print(narrowed(weight.float()))).all()


def test_a_value_that_only_float32_holds_is_not_rounded_away() -> None:
    weight = torch.ones(2, 300)
    weight[1, 299] += 2.0**-20
    prints = exact_prints(serving(weight), 300, torch.float32)
    assert (prints == value_print(weight)).all()
    assert narrowed(weight) is weight
    assert (prints != value_print(torch.ones(2, 300).bfloat16())).all()


def test_random_rows_are_the_same_numbers_in_every_dtype() -> None:
    one, other = (random_rows(3, 64, 7, d).float() for d in (torch.float32, torch.bfloat16))
    assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_subnormal_numbers_are_flushed_and_normal_ones_are_not(dtype: torch.dtype) -> None:
    smallest = torch.finfo(dtype).smallest_normal
    values = torch.tensor([smallest, smallest / 2, -smallest, -smallest / 4, 0, 1, torch.nan])
    got = flushed(values.to(dtype))
    assert got is not None
    wanted = torch.tensor([smallest, 0, -smallest, 0, 0, 1, torch.nan]).to(dtype)
    assert torch.equal(torch.nan_to_num(got), torch.nan_to_num(wanted))
    assert flushed(wanted) is None


def test_subnormal_numbers_of_half_precision_are_normal_where_products_are_made() -> None:
    assert flushed(torch.tensor([2.0**-20], dtype=torch.float16)) is None
