"""Hypothesis: whatever the block, every backend gives the bytes of the scalar specification."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.grids import dequantize, quantize, quantize_and_compare
from syncguard.grids.formats import SOURCE_FORMATS
from tests.grids.helpers import (
    INSTALLED,
    assert_same_bytes,
    from_bits,
    powers_of_two,
    specified,
)


@st.composite
def blocks(draw: st.DrawFn, dtype: torch.dtype) -> torch.Tensor:
    """Draw one block [1, 32]: bit patterns around a base, so that elements share binades.

    Independent patterns would almost all round to zero beside the largest.
    """
    source = SOURCE_FORMATS[dtype]
    largest = source.magnitude_mask
    binade = 1 << source.mantissa_bits
    # Bases at ties of the scale rule matter more than others: 1.75 * 2**k is 448 * 2**j.
    ties = st.integers(0, largest // binade).map(lambda e: e * binade + 3 * binade // 4)
    base = draw(st.integers(0, largest) | ties)
    near = st.integers(-4, 4).map(lambda offset: base + offset)
    below = st.integers(0, 20 * binade).map(lambda offset: base - offset)
    anything = st.integers(0, largest)
    magnitude = (near | below | anything).map(lambda m: min(max(m, 0), largest))
    narrow = (near | below).map(lambda m: min(max(m, 0), base))
    elements = draw(st.lists(draw(st.sampled_from([magnitude, narrow])), min_size=32, max_size=32))
    signs = draw(st.integers(0, (1 << 32) - 1))
    codes = [m | source.sign_bit * (signs >> i & 1) for i, m in enumerate(elements)]
    return from_bits([codes], dtype)


def check(weight: torch.Tensor) -> None:
    expected = specified(weight)
    for backend in INSTALLED:
        assert_same_bytes(quantize(weight, backend=backend), expected)
        assert quantize_and_compare(weight, *expected, backend=backend) == (0, 0)


@settings(deadline=None, max_examples=300)
@given(weight=blocks(torch.float32))
def test_float32_blocks(weight: torch.Tensor) -> None:
    check(weight)


@settings(deadline=None, max_examples=100)
@given(weight=blocks(torch.float16))
def test_float16_blocks(weight: torch.Tensor) -> None:
    check(weight)


@settings(deadline=None, max_examples=100)
@given(weight=blocks(torch.bfloat16))
def test_bfloat16_blocks(weight: torch.Tensor) -> None:
    check(weight)


@settings(deadline=None, max_examples=100)
@given(weight=blocks(torch.bfloat16))
def test_bfloat16_is_quantized_as_the_float32_of_the_same_value(weight: torch.Tensor) -> None:
    assert_same_bytes(quantize(weight), quantize(weight.float()))


@settings(deadline=None, max_examples=100)
@given(weight=blocks(torch.float32))
def test_values_stay_within_half_a_step(weight: torch.Tensor) -> None:
    # Half a unit in the last of E4M3's 3 mantissa bits is 2**-4 of a normal value, and half the
    # smallest subnormal is 2**-10 of the scale below that. Nothing saturates under round_up.
    if not weight.isfinite().all():
        return
    elements, scales = quantize(weight)
    scale = powers_of_two(scales.int() - 127)
    error = (elements.double() * scale - weight.double()).abs()
    assert (error <= torch.maximum(weight.double().abs() / 16, scale / 1024)).all()


@settings(deadline=None, max_examples=100)
@given(weight=blocks(torch.float32))
def test_a_grid_point_stays_where_it_is(weight: torch.Tensor) -> None:
    values = dequantize(*quantize(weight), torch.float32)
    if values.isfinite().all():
        again = dequantize(*quantize(values), torch.float32)
        assert torch.equal(again.view(torch.int32), values.view(torch.int32))
