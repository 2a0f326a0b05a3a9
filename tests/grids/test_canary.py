"""The canary holds what it promises, and tells the known rules apart."""

from __future__ import annotations

import hashlib

import pytest
import torch

from syncguard.grids import canary, quantize
from tests.grids.helpers import LARGEST_BF16, as_bytes, powers_of_two, to_bits


@pytest.fixture(scope="module")
def blocks() -> torch.Tensor:
    return to_bits(canary()).view(-1, 32)


def test_shape_and_content_never_change() -> None:
    weight = canary()
    assert weight.shape == (256, 4096)
    assert weight.dtype == torch.bfloat16
    digest = hashlib.sha256(weight.view(torch.uint8).numpy().tobytes()).hexdigest()
    assert digest == "4af07c3cc2eace990ddb7b47f8ac964744754882755a4de959fba11121127052"


def test_every_positive_finite_maximum_occurs_in_order(blocks: torch.Tensor) -> None:
    maxima = (blocks & 0x7FFF).amax(dim=1)
    assert torch.equal(maxima[:LARGEST_BF16], torch.arange(1, LARGEST_BF16 + 1))
    position = (blocks[:LARGEST_BF16] & 0x7FFF).argmax(dim=1)
    assert position.bincount(minlength=32).min() > 500


def test_signs_zeros_and_subnormals_occur(blocks: torch.Tensor) -> None:
    magnitudes = blocks & 0x7FFF
    assert 0.45 < (blocks >> 15).float().mean() < 0.55
    assert (blocks == 0x8000).any()
    assert (blocks == 0x0000).any()
    assert ((magnitudes > 0) & (magnitudes < 0x80)).any()
    assert magnitudes.max() == LARGEST_BF16
    assert blocks[-3:].tolist() == [[0] * 32, [0x8000] * 32, [0, 0x8000] * 16]


def test_every_element_byte_occurs() -> None:
    elements, scales = quantize(canary())
    present = set(as_bytes(elements).flatten().tolist())
    assert present == {code for code in range(256) if code & 0x7F != 0x7F}
    assert set(scales.flatten().tolist()) == set(range(248))


def test_element_ties_are_exact() -> None:
    exponents = torch.arange(-60, 66)
    ties = canary().view(-1, 32)[LARGEST_BF16:-3].double()
    assert torch.equal(ties[:, 31].abs(), 448 * powers_of_two(exponents))
    _, scales = quantize(canary())
    assert torch.equal(scales.view(-1)[LARGEST_BF16:-3].int(), exponents.int() + 127)
    scaled = ties[:, :31].abs() / powers_of_two(exponents)[:, None]
    codes = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    halfway = (codes[1:] + codes[:-1]) / 2
    assert set(scaled.flatten().tolist()) == set(halfway.tolist())


@pytest.mark.parametrize(
    ("rule", "differing"), [("floor", 7657), ("even", 5681), ("ceil", 23838), ("nearest", 17497)]
)
def test_other_scale_rules_show(rule: str, differing: int) -> None:
    _, scales = quantize(canary())
    _, others = quantize(canary(), rule=rule)
    assert int((scales != others).sum()) == differing
