"""The canary holds what it promises, and tells the known rules apart."""

from __future__ import annotations

import hashlib

import pytest
import torch

from syncguard.grids import canary, quantize
from tests.grids.helpers import LARGEST_BF16, as_bytes, to_bits


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
    present = as_bytes(elements).unique().tolist()
    assert present == [code for code in range(256) if code & 0x7F != 0x7F]
    assert scales.unique().tolist() == list(range(248))


def test_element_ties_are_exact(blocks: torch.Tensor) -> None:
    ties = blocks[LARGEST_BF16:-3]
    assert torch.equal((ties & 0x7FFF)[:, 31], (67 + torch.arange(126)) << 7 | 0x60)
    _, scales = quantize(canary())
    scales = scales.view(-1)[LARGEST_BF16:-3]
    assert torch.equal(scales.long(), 67 + torch.arange(126) - 8)
    # Halfway between neighbouring E4M3 codes: rounding up or down by bits must give neighbours.
    weight = canary().view(-1, 32)[LARGEST_BF16:-3]
    scaled = (
        weight[:, :31].double().abs() * torch.ldexp(torch.ones(1).double(), 127 - scales)[:, None]
    )
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
