"""What kernels do to activations, and the rows that they leave exact."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from syncguard.grids import (
    GRIDS,
    dequantize,
    from_grid,
    int8_product,
    quantize,
    round_activations,
    rounds_activations,
    to_grid,
    unit_columns,
    unit_of,
)
from syncguard.grids.int8_reference import float32

SCALED = [name for name, grid in GRIDS.items() if not grid.plain]


def gaussian(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(torch.bfloat16)


def specified(token: list[float]) -> list[float]:
    """One token as INT8 kernels round it, in exact fractions with a float32 rounding each step."""
    values = [Fraction(value) for value in token]
    scale = float32(max(map(abs, values)) / 127)
    if not scale:
        return [0.0] * len(token)
    inverse = float32(1 / scale)
    steps = [min(max(round(float32(value * inverse)), -128), 127) for value in values]
    return [float(float32(step * scale)) for step in steps]


NUMBERS = st.floats(-8, 8, width=16) | st.sampled_from([0.0, 127.0, -1e-30, 3e4])


@given(st.lists(NUMBERS, min_size=1, max_size=9))
def test_tokens_are_rounded_as_specified(token: list[float]) -> None:
    x = torch.tensor([token], dtype=torch.bfloat16)
    assert round_activations(x, "int8").tolist() == [specified(x[0].tolist())]


def test_each_token_has_a_scale_of_its_own() -> None:
    x = gaussian(4, 64)
    x[1] *= 1000
    rounded = round_activations(x, "int8")
    assert torch.equal(rounded[[0, 2, 3]], round_activations(x[[0, 2, 3]], "int8"))
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, x.float())


def test_mxfp8_rounds_blocks_and_other_names_round_nothing() -> None:
    x = gaussian(4, 64)
    assert torch.equal(round_activations(x, "mxfp8"), dequantize(*quantize(x), dtype=torch.float32))
    for name in ("bf16", "", "unknown"):
        assert torch.equal(round_activations(x, name), x.float())
        assert not rounds_activations(name)
    assert all(map(rounds_activations, SCALED))


@pytest.mark.parametrize("grid", GRIDS)
def test_unit_rows_lose_nothing(grid: str) -> None:
    rows = torch.eye(64, dtype=torch.bfloat16) * unit_of(grid)
    assert torch.equal(round_activations(rows, grid), rows.float())


def test_one_is_no_unit_of_int8() -> None:
    """1 / 127 is rounded, and so some values beside ties come out as the next bf16 number.

    One row in some thousands of a weight in float32 has such a scale; those in bf16 have none,
    since quotients by 127.5 lie too far from ties.
    """
    ties = (2 * torch.arange(128, 256) + 1) / 512  # halfway between numbers of bf16
    near = (ties[:, None] / torch.arange(1, 128)).reshape(-1, 1)
    scales = (near.view(torch.int32) + 1).view(torch.float32)
    elements = torch.arange(1, 128, dtype=torch.int8).repeat(128)[:, None]
    values = from_grid(elements, scales, "int8", torch.bfloat16)
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    assert (values != int8_product(one, elements, scales).T).sum() > 10
    wanted = unit_columns(elements, scales, "int8").to(torch.bfloat16)
    assert torch.equal(int8_product(127 * one, elements, scales).T, wanted)


@pytest.mark.parametrize("grid", SCALED)
def test_columns_are_weights_times_the_unit(grid: str) -> None:
    elements, scales = to_grid(gaussian(8, 64), grid)
    assert scales is not None
    columns = unit_columns(elements, scales, grid)
    exact = unit_of(grid) * from_grid(elements, scales, grid, torch.float32).double()
    torch.testing.assert_close(columns.double(), exact, rtol=2.0**-22, atol=0)


def test_a_kernel_gives_the_columns_for_unit_rows_to_the_bit() -> None:
    elements, scales = to_grid(gaussian(96, 128), "int8")
    assert scales is not None
    rows = torch.eye(128, dtype=torch.bfloat16)
    wanted = unit_columns(elements, scales, "int8").to(torch.bfloat16)
    assert torch.equal(int8_product(rows * unit_of("int8"), elements, scales).T, wanted)


def test_neighbouring_elements_never_give_the_same_column() -> None:
    """Else the probe could not see the lowest bit: all elements, under scales of all kinds."""
    elements = torch.arange(-128, 128, dtype=torch.int8).expand(512, -1)
    scales = torch.linspace(1, 2, 513)[:-1, None] * 3e-3
    columns = unit_columns(elements, scales, "int8").to(torch.bfloat16)
    assert (columns.diff(dim=1) > 0).all()


def test_the_product_rounds_activations_then_sums_exactly() -> None:
    x, weight = gaussian(5, 64, seed=1), gaussian(8, 64, seed=2)
    elements, scales = to_grid(weight, "int8")
    assert scales is not None
    values = from_grid(elements, scales, "int8", torch.float32).double()
    wanted = round_activations(x, "int8").double() @ values.T
    got = int8_product(x, elements, scales)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), wanted, rtol=2.0**-8, atol=1e-6)
    assert not torch.equal(got, x @ values.to(torch.bfloat16).T)


def test_a_bias_is_added_before_the_last_rounding() -> None:
    x, weight = gaussian(16, 64, seed=1), gaussian(8, 64, seed=2)
    elements, scales = to_grid(weight, "int8")
    assert scales is not None
    bias = gaussian(1, 8, seed=3)[0]
    got = int8_product(x, elements, scales, bias)
    bare = int8_product(x.float(), elements, scales)
    assert torch.equal(got, (bare + bias.float()).to(torch.bfloat16))


def test_a_token_of_zeros_gives_zeros() -> None:
    elements, scales = to_grid(gaussian(8, 64), "int8")
    assert scales is not None
    x = torch.zeros(2, 64, dtype=torch.bfloat16)
    assert not int8_product(x, elements, scales).any()
