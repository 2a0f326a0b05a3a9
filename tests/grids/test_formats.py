"""The format table against numbers known from elsewhere."""

from __future__ import annotations

import math

import pytest
import torch

from syncguard.grids.formats import (
    BF16,
    E4M3,
    E8M0,
    FP16,
    FP32,
    GRIDS,
    MXFP8,
    SOURCE_FORMATS,
    NumberFormat,
)


@pytest.mark.parametrize(
    ("number_format", "dtype"),
    [
        (E4M3, torch.float8_e4m3fn),
        (BF16, torch.bfloat16),
        (FP16, torch.float16),
        (FP32, torch.float32),
    ],
    ids=["e4m3", "bf16", "fp16", "fp32"],
)
def test_limits_are_those_of_torch(number_format: NumberFormat, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    assert number_format.bits == info.bits
    assert number_format.max_value == info.max
    significand, exponent = number_format.split(1 << number_format.mantissa_bits)
    assert math.ldexp(significand, exponent) == info.tiny
    assert math.ldexp(*number_format.split(1)) == info.smallest_normal * info.eps


@pytest.mark.parametrize(
    ("number_format", "dtype"),
    [(E4M3, torch.float8_e4m3fn), (BF16, torch.bfloat16), (FP16, torch.float16)],
    ids=["e4m3", "bf16", "fp16"],
)
def test_every_code_means_what_torch_says(number_format: NumberFormat, dtype: torch.dtype) -> None:
    word = torch.uint8 if number_format.bits == 8 else torch.int16
    codes = torch.arange(number_format.magnitude_mask + 1)
    values = codes.to(word).view(dtype).double().tolist()
    for code, value in enumerate(values):
        if math.isnan(value):
            assert number_format.is_nan(code)
        elif math.isinf(value):
            assert code == number_format.infinity
        else:
            assert math.ldexp(*number_format.split(code)) == value


def test_e8m0_is_the_powers_of_two_without_zero() -> None:
    assert [math.ldexp(*E8M0.split(code)) for code in (0, 127, 254)] == [2.0**-127, 1.0, 2.0**127]
    assert E8M0.is_nan(0xFF)
    assert not E8M0.is_nan(0xFE)
    assert E8M0.sign_bit == 0
    assert E8M0.bits == 8


def test_e4m3_has_no_infinity_and_saturates() -> None:
    assert E4M3.infinity is None
    assert E4M3.overflow == 0x7E
    assert E4M3.max_value == 448.0
    assert [code for code in range(128) if E4M3.is_nan(code)] == [0x7F]


def test_gfloat_agrees_on_e4m3() -> None:
    gfloat = pytest.importorskip("gfloat")
    formats = pytest.importorskip("gfloat.formats")
    for code in range(256):
        theirs = gfloat.decode_float(formats.format_info_ocp_e4m3, code).fval
        magnitude = code & E4M3.magnitude_mask
        if math.isnan(theirs):
            assert E4M3.is_nan(magnitude)
        else:
            assert math.copysign(math.ldexp(*E4M3.split(magnitude)), 0.5 - (code >> 7)) == theirs


def test_grids_are_keyed_by_name_and_consistent_with_their_dtypes() -> None:
    assert {"int8", "mxfp8", "bf16", "fp16", "fp32"} <= GRIDS.keys()
    for name, grid in GRIDS.items():
        assert grid.name == name
        assert grid.element.bits == 8 * grid.element_dtype.itemsize
        assert grid.plain == (grid.scale is None) == (grid.scale_dtype is None)
        assert (grid.block_size == 1) == grid.plain


def test_mxfp8_takes_eight_and_a_quarter_bits() -> None:
    assert MXFP8.bits_per_weight == 8.25
    assert GRIDS["bf16"].bits_per_weight == 16


def test_int8_has_a_scale_for_each_row() -> None:
    grid = GRIDS["int8"]
    assert (grid.bits_per_weight, grid.blocks(64), GRIDS["mxfp8"].blocks(64)) == (8, 1, 2)
    assert GRIDS["bf16"].blocks(64) == 0
    assert grid.element.max_value == torch.iinfo(torch.int8).max


def test_sources_are_the_plain_grids() -> None:
    assert {dtype: f.name for dtype, f in SOURCE_FORMATS.items()} == {
        grid.element_dtype: name for name, grid in GRIDS.items() if grid.plain
    }
