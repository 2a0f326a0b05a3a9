"""Other implementations: equal where they are right, different exactly where that is documented."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from syncguard.grids import canary, quantize
from tests.grids.helpers import (
    as_bytes,
    assert_same_bytes,
    blocks_with_every_maximum,
    from_bits,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Quantizer = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="module")
def torchao() -> Quantizer:
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")

    def quantizer(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mode = mx_tensor.ScaleCalculationMode.RCEIL
        scales, elements = mx_tensor.to_mx(weight, torch.float8_e4m3fn, 32, mode)
        return as_bytes(elements), as_bytes(scales).view(*weight.shape[:-1], -1)

    return quantizer


@pytest.fixture(scope="module")
def vllm() -> Quantizer:
    utils = pytest.importorskip("vllm.model_executor.layers.quantization.utils.mxfp8_utils")

    def quantizer(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        elements, scales = utils._mxfp8_e4m3_quantize_torch(weight)
        return as_bytes(elements), scales

    return quantizer


def near_scale_ties() -> torch.Tensor:
    """Return float32 [B, 32], maxima -16 to +63 ulp from 448 * 2**k, k for weight-like sizes."""
    exponents = torch.arange(119, 131)[:, None] << 23 | 0x600000
    maxima = (exponents + torch.arange(-16, 64)).view(-1)
    weight = torch.zeros(len(maxima), 32)
    weight[:, 11] = from_bits(maxima, torch.float32)
    weight[:, 12] = -weight[:, 11] / 3
    return weight


def test_torchao_on_every_bf16_maximum_of_scale_above_zero(torchao: Quantizer) -> None:
    for position in (0, 13, 31):
        weight = blocks_with_every_maximum(position, seed=7)
        elements, scales = torchao(weight)
        ours, our_scales = quantize(weight)
        assert torch.equal(scales, our_scales)
        normal = our_scales[:, 0] > 0
        assert torch.equal(elements[normal], as_bytes(ours)[normal])


def test_torchao_loses_blocks_of_scale_zero(torchao: Quantizer) -> None:
    # It multiplies by 1 instead of 2**127, so that nothing but signs is left.
    weight = blocks_with_every_maximum(13, seed=7)
    elements, _ = torchao(weight)
    ours, our_scales = quantize(weight)
    lost = our_scales[:, 0] == 0
    assert int(lost.sum()) == 0x460
    assert not (elements[lost] & 0x7F).any()
    assert (as_bytes(ours)[lost] & 0x7F).any(dim=1).all()


def test_vllm_on_every_bf16_maximum(vllm: Quantizer) -> None:
    for position in (0, 13, 31):
        weight = blocks_with_every_maximum(position, seed=7)
        assert_same_bytes(vllm(weight), quantize(weight))


def test_vllm_on_the_canary(vllm: Quantizer) -> None:
    assert_same_bytes(vllm(canary()), quantize(canary()))


def test_vllm_on_float16(vllm: Quantizer) -> None:
    weight = torch.randn(64, 512, generator=torch.Generator().manual_seed(1)).half()
    assert_same_bytes(vllm(weight), quantize(weight))


@pytest.mark.parametrize("name", ["torchao", "vllm"])
def test_float32_just_above_a_tie_gets_too_small_a_scale(
    name: str, request: pytest.FixtureRequest
) -> None:
    # Their float32 log2 of the quotient rounds down to the integer.
    other: Quantizer = request.getfixturevalue(name)
    weight = near_scale_ties()
    elements, scales = other(weight)
    ours, our_scales = quantize(weight)
    different = (scales != our_scales)[:, 0]
    ulps = torch.arange(-16, 64).repeat(12)
    assert set(ulps[different].tolist()) <= set(range(1, 5))
    assert different[ulps == 1].all()
    assert torch.equal(scales[different] + 1, our_scales[different])
    assert torch.equal(elements[~different], as_bytes(ours)[~different])


def test_vllm_spreads_a_nan_over_its_block(vllm: Quantizer) -> None:
    weight = torch.ones(1, 32)
    weight[0, 4] = torch.nan
    elements, scales = vllm(weight)
    assert elements.tolist() == [[0x7F] * 32]
    assert scales.tolist() == [[0]]
    ours, our_scales = quantize(weight)
    assert as_bytes(ours)[0].tolist() == [0x78] * 4 + [0x7F] + [0x78] * 27
    assert our_scales.tolist() == [[119]]


def test_torchao_gives_a_nan_block_the_nan_scale(torchao: Quantizer) -> None:
    weight = torch.ones(1, 32)
    weight[0, 4] = torch.nan
    _, scales = torchao(weight)
    assert scales.tolist() == [[255]]
