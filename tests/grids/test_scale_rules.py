"""Scale rules: the closed forms against arithmetic, torchao and the counts known from the field."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from syncguard.grids import SCALE_RULES, quantize
from tests.grids.helpers import LARGEST_BF16, from_bits

MAXIMA = range(1, LARGEST_BF16 + 1)


def scales_of_every_maximum(rule: str) -> list[int]:
    return [SCALE_RULES[rule].scale_byte(bits << 16) for bits in MAXIMA]


def float_of(bits: int) -> float:
    return float(torch.tensor([bits], dtype=torch.int32).view(torch.float32))


def test_round_up_is_the_ceiling_of_the_exact_quotient() -> None:
    # 448 * 2**(s - 127) >= a for the scale s, and not for s - 1: nothing saturates, in exact
    # arithmetic, and no smaller scale would do.
    for bits, scale in zip(MAXIMA, scales_of_every_maximum("round_up"), strict=True):
        maximum = Fraction(float_of(bits << 16))
        assert maximum <= 448 * Fraction(2) ** (scale - 127)
        assert scale == 0 or maximum > 448 * Fraction(2) ** (scale - 128)


@pytest.mark.parametrize(("rule", "differing"), [("floor", 7657), ("even", 5681), ("ceil", 23712)])
def test_how_many_maxima_get_another_scale_than_round_up(rule: str, differing: int) -> None:
    ours, theirs = scales_of_every_maximum("round_up"), scales_of_every_maximum(rule)
    differences = [b - a for a, b in zip(ours, theirs, strict=True) if a != b]
    assert len(differences) == differing
    # floor and even choose too small a scale (elements saturate), ceil needlessly large a one.
    assert set(differences) == ({1} if rule == "ceil" else {-1})


@pytest.mark.parametrize("rule", SCALE_RULES)
def test_vectors_follow_the_scalar_rule_on_every_maximum(rule: str) -> None:
    weight = torch.zeros(LARGEST_BF16, 32, dtype=torch.bfloat16)
    weight[:, 5] = -from_bits(list(MAXIMA))
    _, scales = quantize(weight, rule=rule)
    assert scales[:, 0].tolist() == scales_of_every_maximum(rule)


@pytest.mark.parametrize("rule", ["floor", "even", "ceil"])
def test_torchao_mode_of_the_same_name_gives_the_same_scales(rule: str) -> None:
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    weight = torch.zeros(LARGEST_BF16, 32, dtype=torch.bfloat16)
    weight[:, 0] = from_bits(list(MAXIMA))
    mode = getattr(mx_tensor.ScaleCalculationMode, rule.upper())
    scales, _ = mx_tensor.to_mx(weight, torch.float8_e4m3fn, 32, mode)
    assert scales.view(torch.uint8)[:, 0].tolist() == scales_of_every_maximum(rule)


@pytest.mark.parametrize("rule", ["floor", "even", "ceil"])
def test_torchao_gives_an_infinite_block_the_same_scale(rule: str) -> None:
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    weight = torch.full((1, 32), math.inf, dtype=torch.bfloat16)
    mode = getattr(mx_tensor.ScaleCalculationMode, rule.upper())
    scales, _ = mx_tensor.to_mx(weight, torch.float8_e4m3fn, 32, mode)
    assert int(scales.view(torch.uint8)) == SCALE_RULES[rule].infinity


def test_nearest_is_the_torch_cast_to_e8m0_but_for_the_lowest_binade() -> None:
    maxima = torch.tensor([bits << 16 for bits in MAXIMA], dtype=torch.int32).view(torch.float32)
    cast = (maxima * (1 / torch.tensor(448.0))).to(torch.float8_e8m0fnu).view(torch.uint8)
    ours = torch.tensor(scales_of_every_maximum("nearest"), dtype=torch.uint8)
    different = (cast != ours).nonzero().flatten() + 1
    # torch rounds all of (2**-127, 2**-126) up: there the leading one is not implied.
    assert different.tolist() == list(range(0x461, 0x4A8))
    assert set(cast[different - 1].tolist()) == {1}


def test_nearest_breaks_float32_ties_upwards() -> None:
    rule = SCALE_RULES["nearest"]
    tie = 0x3FA80000  # 1.3125 = 1.5 * 448 / 512
    for bits in range(tie - 64, tie + 64):
        product = torch.tensor(float_of(bits)) * (1 / torch.tensor(448.0))
        assert rule.scale_byte(bits) == int(product.to(torch.float8_e8m0fnu).view(torch.uint8))


def test_one_float32_maximum_is_outside_the_closed_form() -> None:
    rule = SCALE_RULES["round_up"]
    assert [rule.scale_byte(bits) for bits in (0x04600000, 0x04600001, 0x04600002)] == [0, 0, 1]
    # Because the float32 product underflows to exactly 2**-127.
    reciprocal = torch.tensor([0x3B124925], dtype=torch.int32).view(torch.float32)
    maxima = torch.tensor([0x04600001, 0x04600002], dtype=torch.int32).view(torch.float32)
    assert (maxima * reciprocal).view(torch.int32).tolist() == [0x00400000, 0x00400001]


@pytest.mark.parametrize("rule", SCALE_RULES)
def test_largest_finite_maximum_and_infinity(rule: str) -> None:
    assert SCALE_RULES[rule].scale_byte(0x7F7FFFFF) == {"nearest": 246, "floor": 246}.get(rule, 247)
    assert SCALE_RULES[rule].scale_byte(0x7F800000) == SCALE_RULES[rule].infinity
