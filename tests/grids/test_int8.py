"""INT8 by output channels: the vectorized rule against the specification and compressed-tensors."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from syncguard.grids import canary, from_grid, int8_reference, to_grid
from syncguard.grids.int8 import dequantize, quantize
from tests.grids.helpers import LARGEST_BF16, from_bits

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SMALL = st.floats(-2, 2, width=32) | st.sampled_from([0.0, -0.0, 1e-45, -1e-38])


def specified(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [int8_reference.quantize_row([Fraction(x) for x in row]) for row in weight.tolist()]
    elements = torch.tensor([codes for _, codes in rows], dtype=torch.int8)
    return elements, torch.tensor([[float(scale)] for scale, _ in rows])


def assert_specified(weight: torch.Tensor) -> None:
    elements, scales = quantize(weight)
    wanted, wanted_scales = specified(weight.float())
    assert torch.equal(scales, wanted_scales)
    assert torch.equal(elements, wanted)


@given(st.lists(st.lists(FLOATS, min_size=5, max_size=5), min_size=1, max_size=4))
def test_any_float32_rows_are_as_specified(rows: list[list[float]]) -> None:
    assert_specified(torch.tensor(rows))


@given(st.lists(st.lists(SMALL, min_size=3, max_size=3), min_size=1, max_size=4))
def test_rows_like_those_of_weights_are_as_specified(rows: list[list[float]]) -> None:
    assert_specified(torch.tensor(rows).to(torch.bfloat16))


def test_every_significand_of_bf16_beside_every_other() -> None:
    """All 128 x 128 quotients of two significands, under either sign of the larger one."""
    significands = from_bits(torch.arange(0x3F00, 0x3F80))
    for sign in (1, -1):
        largest = torch.full((128, 1), 0.998, dtype=torch.bfloat16) + significands[:, None]
        row = torch.cat([sign * largest, significands.expand(128, -1)], dim=1)
        assert_specified(row)


def test_every_positive_maximum_of_bf16_has_the_specified_scale() -> None:
    maxima = from_bits(torch.arange(1, LARGEST_BF16 + 1))[:, None]
    elements, scales = quantize(maxima)
    sampled = torch.arange(0, len(maxima), 61)
    assert torch.equal(scales[sampled], specified(maxima[sampled].float())[1])
    normal = maxima.float() > 2.0**-110  # below, the scale has lost digits
    assert set(elements[normal].tolist()) == {127}


def test_quotients_that_round_up_to_a_tie_go_to_the_even_element() -> None:
    """The float32 quotient is a tie though the exact one is not: each operation rounds."""
    found = 0
    for bits in range(0x3F800000, 0x3F800000 + 40_000, 7):
        row = from_bits([[bits, 0x3F000000]], torch.float32)
        scale = int8_reference.row_scale([Fraction(row[0, 0].item())])
        quotient = Fraction(1, 2) / scale
        rounded = int8_reference.float32(quotient)
        if rounded != quotient and (2 * rounded).denominator == 1 and rounded.denominator == 2:
            found += 1
            assert_specified(row)
    assert found


def test_signs_reach_to_both_ends() -> None:
    elements, scales = quantize(torch.tensor([[127.5, 1.5, 0.5], [-127.5, 1.5, -0.5]]))
    assert scales.tolist() == [[1.0], [1.0]]
    assert elements.tolist() == [[127, 2, 0], [-128, 2, 0]]


def test_rows_of_zeros_have_epsilon_for_a_scale() -> None:
    weight = torch.tensor([[0.0, -0.0], [1.0, 0.0], [1e-45, 0.0]])
    elements, scales = quantize(weight)
    assert scales[:, 0].tolist() == [2.0**-23, pytest.approx(1 / 127.5), 2.0**-23]
    assert elements.tolist() == [[0, 0], [127, 0], [0, 0]]
    assert_specified(weight)
    assert not dequantize(elements, scales)[0].any()


def test_values_are_elements_times_scales_rounded_once() -> None:
    elements, scales = quantize(torch.randn(6, 40, generator=torch.Generator().manual_seed(3)))
    exact = elements.double() * scales.double()
    assert torch.equal(dequantize(elements, scales), exact.float())
    assert torch.equal(dequantize(elements, scales, times=127), (127 * exact).float())
    bf16 = dequantize(elements, scales, torch.bfloat16)
    assert torch.equal(bf16, exact.float().to(torch.bfloat16))
    assert not torch.equal(bf16.float(), exact.float())


def test_any_stack_of_matrices_is_quantized_row_by_row() -> None:
    stacked = canary()[:4, :64].reshape(2, 2, 64)
    elements, scales = to_grid(stacked, "int8")
    assert scales is not None
    assert (elements.shape, scales.shape) == ((2, 2, 64), (2, 2, 1))
    one, own = to_grid(stacked[1], "int8")
    assert torch.equal(elements[1], one)
    assert own is not None
    assert torch.equal(scales[1], own)
    assert from_grid(elements, scales, "int8", torch.bfloat16).shape == (2, 2, 64)


@pytest.fixture(scope="module")
def compressed_tensors() -> Any:
    return pytest.importorskip("compressed_tensors.quantization")


@pytest.mark.parametrize("columns", [1, 7, 128])
def test_compressed_tensors_gives_the_same_for_float32_weights(
    compressed_tensors: Any, columns: int
) -> None:
    weight = torch.randn(512, columns, generator=torch.Generator().manual_seed(columns))
    weight[7] = 0
    weight = torch.cat([weight, weight.to(torch.bfloat16).float(), canary()[:, :columns].float()])
    elements, scales = by_compressed_tensors(compressed_tensors, weight)
    ours, our_scales = quantize(weight)
    assert torch.equal(our_scales, scales)
    assert torch.equal(ours, elements)


def test_compressed_tensors_makes_another_grid_of_bf16_weights(compressed_tensors: Any) -> None:
    """Its scales and quotients are bf16 then; whoever exports so serves other elements."""
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    elements, scales = by_compressed_tensors(compressed_tensors, weight)
    ours, our_scales = quantize(weight)
    assert scales.dtype == torch.bfloat16
    assert not torch.equal(our_scales, scales.float())
    assert not torch.equal(ours, elements)


def by_compressed_tensors(module: Any, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from compressed_tensors.quantization.lifecycle.forward import quantize as theirs
    from compressed_tensors.quantization.utils import calculate_qparams

    args = module.QuantizationArgs(num_bits=8, type="int", strategy="channel", symmetric=True)
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scales, zero_points = calculate_qparams(low, high, args)
    return theirs(weight, scales, zero_points, args, dtype=torch.int8), scales


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_is_refused_by_row(value: float) -> None:
    weight = torch.ones(4, 8)
    weight[2, 5] = value
    with pytest.raises(ValueError, match=r"row 2 of the weight holds infinity or NaN.*diverged"):
        quantize(weight)


def test_other_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype torch.bfloat16.*got torch.int8 \[2, 2\].*before"):
        quantize(torch.zeros(2, 2, dtype=torch.int8))
    with pytest.raises(ValueError, match=r"must have elements.*got torch.float32 \[0, 4\]"):
        quantize(torch.zeros(0, 4))
    elements, scales = quantize(torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"scales torch.float32, got torch.int8 and torch.uint8"):
        dequantize(elements, scales.to(torch.uint8))
    with pytest.raises(ValueError, match=r"\[2, 4\] take a scale a row, \[2, 1\], got \[1\]"):
        dequantize(elements, scales[0])
