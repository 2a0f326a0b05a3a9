"""The scalar specification: hand-made blocks, and conversions against torch's casts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from syncguard.grids import reference
from syncguard.grids.formats import BF16, E4M3, FP16, FP32, NumberFormat
from tests.grids.helpers import DATA

INFINITY, NAN, NEGATIVE_NAN = 0x7F80, 0x7FC0, 0xFFC0
LARGEST = 0x7F7F


def block(*codes: int, rest: int = 0) -> list[int]:
    return [*codes, *[rest] * (32 - len(codes))]


@pytest.mark.parametrize(
    ("codes", "scale", "elements"),
    [
        pytest.param(block(), 0, block(), id="zeros"),
        pytest.param(block(0x8000), 0, block(0x80), id="negative zero keeps its sign"),
        pytest.param(block(0x0001), 0, block(0x08), id="smallest subnormal, times 2**127"),
        pytest.param(block(0x8001), 0, block(0x88), id="negative subnormal"),
        pytest.param(block(0x0460), 0, block(0x7E), id="448 * 2**-127, the last of scale 0"),
        pytest.param(block(0x0461), 1, block(0x76), id="the first of scale 1"),
        pytest.param(block(0x43E0), 127, block(0x7E), id="448 takes scale 1"),
        pytest.param(block(0x43E1), 128, block(0x76), id="just above 448 takes scale 2"),
        pytest.param(block(INFINITY, 0x3F80), 254, block(0x7E), id="infinity"),
        pytest.param(block(0xFF80, LARGEST), 254, block(0xFE, 0x40), id="negative infinity"),
        pytest.param(block(NAN, 0x43E0), 127, block(0x7F, 0x7E), id="NaN does not count"),
        pytest.param(block(NEGATIVE_NAN, 0x43E0), 127, block(0x7F, 0x7E), id="negative NaN"),
        pytest.param(block(rest=NAN), 0, block(rest=0x7F), id="all NaN"),
        pytest.param(block(LARGEST), 247, block(0x78), id="largest finite"),
        pytest.param(block(0x43E0, 0x3A80), 127, block(0x7E, 0x00), id="tie 2**-10 to even zero"),
        pytest.param(block(0x43E0, 0x3A81), 127, block(0x7E, 0x01), id="above that tie"),
        pytest.param(block(0x43E0, 0x3B40), 127, block(0x7E, 0x02), id="tie 1.5 * 2**-9 to even"),
        pytest.param(block(0x43E0, 0x3F88), 127, block(0x7E, 0x38), id="tie 1.0625 to even"),
        pytest.param(block(0x43E0, 0x3F98), 127, block(0x7E, 0x3A), id="tie 1.1875 to even"),
    ],
)
def test_special_blocks(codes: list[int], scale: int, elements: list[int]) -> None:
    assert reference.quantize_block(codes, BF16) == (scale, elements)


def test_saturation_under_a_rule_that_rounds_down() -> None:
    scale, elements = reference.quantize_block(block(0x43F0, 0xC3F8), BF16, "floor")
    assert scale == 127
    assert elements == block(0x7E, 0xFE)


def test_float32_just_above_a_tie_needs_the_next_scale() -> None:
    # 448 + 1 ulp: float32 log2 of the quotient is already 0, and others stay at 127 here.
    assert reference.quantize_block(block(0x43E00000))[0] == 127
    assert reference.quantize_block(block(0x43E00001))[0] == 128


@pytest.mark.parametrize(("source", "dtype"), [("bf16", BF16), ("fp32", FP32)])
def test_vectors_of_the_vendor_conversions(source: str, dtype: NumberFormat) -> None:
    vectors = np.load(DATA / "mxfp8.npz")
    inputs = vectors[f"{source}_bits"].tolist()
    scales, elements = vectors[f"{source}_scale"].tolist(), vectors[f"{source}_element"].tolist()
    for codes, scale, expected in zip(inputs, scales, elements, strict=True):
        assert reference.quantize_block(codes, dtype) == (scale, expected)


@given(st.integers(0, 0xFFFF))
def test_float16_widens_exactly(code: int) -> None:
    widened = reference.convert(code, FP16, FP32)
    assert reference.convert(widened, FP32, FP16) == (
        code & 0x8000 | FP16.nan if FP16.is_nan(code & 0x7FFF) else code
    )
    if not FP16.is_nan(code & 0x7FFF):
        value = torch.tensor([code]).to(torch.int16).view(torch.float16).float()
        assert int(value.view(torch.int32)) & 0xFFFFFFFF == widened


@given(st.integers(0, 0xFFFFFFFF))
@pytest.mark.parametrize(("target", "dtype"), [(BF16, torch.bfloat16), (FP16, torch.float16)])
def test_narrowing_is_torch_rounding(target: NumberFormat, dtype: torch.dtype, code: int) -> None:
    value = torch.tensor([code]).to(torch.int32).view(torch.float32)
    ours = reference.convert(code, FP32, target)
    if bool(value.isnan()):
        assert target.is_nan(ours & target.magnitude_mask)
    else:
        assert int(value.to(dtype).view(torch.int16)) & 0xFFFF == ours


@given(st.integers(0, 1 << 40), st.integers(1, 45))
def test_round_half_even_is_python_rounding(significand: int, shift: int) -> None:
    assert reference.round_half_even(significand, -shift) == round(
        Fraction(significand, 1 << shift)
    )
    assert reference.round_half_even(significand, shift) == significand << shift


def test_dequantized_values() -> None:
    # 1.0 * 2**0, 448 * 2**-9, subnormal 2**-9 * 2**-127 = 2**-136 below bf16's 2**-133.
    assert reference.dequantize_element(0x38, 127, BF16) == 0x3F80
    assert reference.dequantize_element(0xFE, 118, FP32) == 0xBF600000
    assert reference.dequantize_element(0x01, 0, FP32) == 1 << (149 - 136)
    assert reference.dequantize_element(0x01, 0, BF16) == 0
    assert reference.dequantize_element(0x7E, 254, BF16) == INFINITY
    assert reference.dequantize_element(0x80, 254, BF16) == 0x8000


def test_dequantized_nan() -> None:
    assert BF16.is_nan(reference.dequantize_element(0x7F, 127, BF16))
    assert BF16.is_nan(reference.dequantize_element(0x00, 255, BF16))


@given(st.integers(0, 254), st.integers(0, 0x7E))
def test_an_element_of_the_grid_returns_to_itself(scale: int, code: int) -> None:
    bits = reference.dequantize_element(code, scale, FP32)
    if bits != FP32.infinity:
        assert reference.element_byte(bits, scale) == code
    assert E4M3.magnitude_mask & code == code
