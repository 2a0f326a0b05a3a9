"""Vectorized MXFP8 against the scalar specification, on every backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from syncguard.grids import (
    SCALE_RULES,
    canary,
    dequantize,
    quantize,
    quantize_and_compare,
    reference,
)
from syncguard.grids.formats import BF16, FP32
from tests.grids.helpers import (
    DATA,
    INSTALLED,
    LARGEST_BF16,
    as_bytes,
    assert_same_bytes,
    blocks_with_every_maximum,
    both_backends,
    from_bits,
    powers_of_two,
    specified,
    to_bits,
)

if TYPE_CHECKING:
    from syncguard.grids.formats import NumberFormat
    from syncguard.grids.mxfp8 import Backend

TARGETS = [(torch.bfloat16, BF16), (torch.float32, FP32)]


@both_backends
@pytest.mark.parametrize(("source", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_vectors_of_the_vendor_conversions(
    source: str, dtype: torch.dtype, backend: Backend
) -> None:
    vectors = np.load(DATA / "mxfp8.npz")
    weight = from_bits(vectors[f"{source}_bits"], dtype)
    elements = torch.from_numpy(vectors[f"{source}_element"])
    scales = torch.from_numpy(vectors[f"{source}_scale"])[:, None]
    assert_same_bytes(quantize(weight, backend=backend), (elements, scales))
    assert quantize_and_compare(weight, elements, scales, backend=backend) == (0, 0)


@pytest.mark.parametrize(
    "position", [*(pytest.param(at, marks=pytest.mark.slow) for at in (0, 31)), 17]
)
def test_every_bf16_maximum_follows_the_specification(position: int) -> None:
    weight = blocks_with_every_maximum(position)
    expected = specified(weight)
    for backend in INSTALLED:
        assert_same_bytes(quantize(weight, backend=backend), expected)


def test_every_bf16_maximum_at_every_position() -> None:
    maximum = torch.arange(1, LARGEST_BF16 + 1)
    above = (maximum & 0x7F) > 0x60
    closed_form = ((maximum >> 7) - 8 + above).clamp(min=0)
    inverse = powers_of_two(127 - closed_form)[:, None]
    for position in range(32):
        weight = blocks_with_every_maximum(position, seed=100)
        # Products by a power of two are exact in float64; those that float32 would flush are far
        # below the smallest E4M3.
        expected = (weight.double() * inverse).float().to(torch.float8_e4m3fn)
        for backend in INSTALLED:
            quantized = quantize(weight, backend=backend)
            assert_same_bytes(quantized, (expected, closed_form.to(torch.uint8)[:, None]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("beside", [0x0000, 0x0080, 0x3C00, 0x7BFF])
def test_every_16_bit_value_as_an_element(beside: int, dtype: torch.dtype) -> None:
    # 31 neighbouring values and one fixed value in a block; all 65,536 patterns, NaN included.
    codes = torch.arange(1 << 16)
    codes = torch.cat([codes, torch.zeros(-len(codes) % 31, dtype=torch.int64)]).view(-1, 31)
    weight = from_bits(torch.nn.functional.pad(codes, (0, 1), value=beside), dtype)
    expected = specified(weight)
    for backend in INSTALLED:
        assert_same_bytes(quantize(weight, backend=backend), expected)


@pytest.mark.parametrize("rule", SCALE_RULES)
def test_alternative_rules_follow_the_specification(rule: str) -> None:
    weight = blocks_with_every_maximum(7)[::16]
    assert_same_bytes(quantize(weight, rule=rule), specified(weight, rule))
    elements, scales = specified(weight, rule)
    assert quantize_and_compare(weight, elements, scales, rule=rule) == (0, 0)


@pytest.mark.parametrize(("dtype", "target"), TARGETS)
def test_every_element_under_every_scale_dequantizes_as_specified(
    dtype: torch.dtype, target: NumberFormat
) -> None:
    elements = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, 8)
    expected = [
        [reference.dequantize_element(code, scale, target) for code in range(256)]
        for scale in range(256)
    ]
    for backend in INSTALLED:
        values = dequantize(elements, scales, dtype, backend=backend)
        assert to_bits(values).tolist() == expected


@both_backends
@pytest.mark.parametrize(("dtype", "target"), TARGETS)
def test_blocks_of_one_element_under_every_scale(
    dtype: torch.dtype, target: NumberFormat, backend: Backend
) -> None:
    # Blocks of zeros and of E4M3 subnormals have a branch of their own.
    codes = torch.tensor([0x00, 0x80, 0x01, 0x87, 0x08, 0x7F, 0xFE], dtype=torch.uint8)
    elements = codes.repeat_interleave(32).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)[:, None].expand(-1, len(codes))
    values = to_bits(dequantize(elements, scales, dtype, backend=backend))
    for scale, row in enumerate(values.view(256, len(codes), 32).tolist()):
        for code, block in zip(codes.tolist(), row, strict=True):
            assert block == [reference.dequantize_element(code, scale, target)] * 32


@both_backends
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_quantizing_dequantized_weights_gives_them_back(
    dtype: torch.dtype, backend: Backend
) -> None:
    # From scale 24 on nothing is subnormal. Below 2**-127 * 448 and so on values round, and the
    # maximum of a block may be below the top binade (its scale was rounded up), so that bytes
    # change while values stay.
    weight = blocks_with_every_maximum(3)[(24 + 8) << 7 :].to(dtype)
    once = dequantize(*quantize(weight, backend=backend), dtype, backend=backend)
    finite = once.isfinite().all(dim=1)
    assert finite.float().mean() > 0.99
    twice = dequantize(*quantize(once[finite], backend=backend), dtype, backend=backend)
    assert torch.equal(to_bits(twice), to_bits(once[finite]))


@both_backends
def test_compare_counts_each_differing_byte(backend: Backend) -> None:
    weight = blocks_with_every_maximum(9)[::7].clone()
    weight[0, 3], weight[1, 4] = torch.inf, torch.nan  # blocks off the fast path
    elements, scales = (t.view(torch.uint8).clone() for t in quantize(weight))
    elements[0, 5] ^= 1
    elements[2, 6] ^= 0x80
    elements[-1] ^= 3
    scales[0] += 1
    scales[4] += 1
    assert quantize_and_compare(weight, elements, scales, backend=backend) == (34, 2)


@both_backends
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_leading_dimensions_and_strides_do_not_matter(dtype: torch.dtype, backend: Backend) -> None:
    weight = torch.randn(3, 5, 96, generator=torch.Generator().manual_seed(3)).to(dtype)
    strided = weight.permute(1, 0, 2)
    elements, scales = quantize(strided, backend=backend)
    assert elements.shape == (5, 3, 96)
    assert scales.shape == (5, 3, 3)
    flat = quantize(strided.reshape(15, 96).contiguous(), backend=backend)
    assert_same_bytes((elements.view(15, 96), scales.view(15, 3)), flat)
    values = dequantize(elements, scales, backend=backend)
    assert torch.equal(values.view(15, 96), dequantize(*flat, backend=backend))
    vector = quantize(strided[0, 0], backend=backend)
    assert_same_bytes(vector, (elements[0, 0], scales[0, 0]))


@both_backends
@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (0,)])
def test_empty_weights(shape: tuple[int, ...], backend: Backend) -> None:
    elements, scales = quantize(torch.zeros(shape, dtype=torch.bfloat16), backend=backend)
    assert elements.shape == shape
    assert scales.numel() == 0
    assert dequantize(elements, scales, backend=backend).shape == shape
    assert quantize_and_compare(
        torch.zeros(shape, dtype=torch.bfloat16), elements, scales, backend=backend
    ) == (0, 0)


@both_backends
def test_out_is_written_and_returned(backend: Backend) -> None:
    weight = blocks_with_every_maximum(1)[::50]
    expected = quantize(weight, backend=backend)
    out = torch.full_like(expected[0], 1.0), torch.full_like(expected[1], 1)
    returned = quantize(weight, backend=backend, out=out)
    assert returned[0] is out[0]
    assert returned[1] is out[1]
    assert_same_bytes(out, expected)
    values = torch.zeros_like(weight)
    assert dequantize(*out, backend=backend, out=values) is values
    assert torch.equal(values, dequantize(*expected, backend=backend))


@both_backends
def test_parameters_are_taken_as_they_are(backend: Backend) -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 64))
    elements, scales = quantize(parameter, backend=backend)
    assert not elements.requires_grad
    assert torch.equal(dequantize(elements, scales, torch.float32), parameter.detach())


@both_backends
def test_scales_may_be_typed_as_e8m0_and_elements_as_bytes(backend: Backend) -> None:
    elements, scales = quantize(blocks_with_every_maximum(2)[::99])
    plain = dequantize(elements, scales, backend=backend)
    typed = dequantize(
        elements.view(torch.uint8), scales.view(torch.float8_e8m0fnu), backend=backend
    )
    assert torch.equal(plain, typed)


@both_backends
def test_flushing_denormals_changes_nothing(backend: Backend) -> None:
    weight = torch.cat([blocks_with_every_maximum(4)[: 40 << 7], from_bits([[0x7F80] + [1] * 31])])
    expected = quantize(weight, backend=backend)
    values = dequantize(*expected, torch.float32, backend=backend)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        assert_same_bytes(quantize(weight, backend=backend), expected)
        flushed = dequantize(*expected, torch.float32, backend=backend)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(to_bits(values), to_bits(flushed))


def test_default_dtype_and_device_do_not_matter() -> None:
    from syncguard.grids import _torch_kernels

    elements, scales = quantize(canary()[:2])
    values = dequantize(elements, scales, torch.float32)
    _torch_kernels._dequantize_table.cache_clear()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            weight = canary()[:2]
            for backend in INSTALLED:
                assert_same_bytes(quantize(weight, backend=backend), (elements, scales))
                again = dequantize(elements, scales, torch.float32, backend=backend)
                assert torch.equal(to_bits(again), to_bits(values))
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_work_split_over_threads_is_the_same(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    from syncguard.grids import _numba_backend

    # Not a multiple of the thread count, with special blocks in every range.
    weight = blocks_with_every_maximum(8)[::8].to(dtype)
    whole = quantize(weight, backend="numba")
    values = dequantize(*whole, backend="numba")
    monkeypatch.setattr(_numba_backend, "_BLOCKS_PER_THREAD", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert_same_bytes(quantize(weight, backend="numba"), whole)
    assert torch.equal(to_bits(dequantize(*whole, backend="numba")), to_bits(values))
    assert quantize_and_compare(weight, *whole, backend="numba") == (0, 0)
    flipped = as_bytes(whole[0]) ^ 0x80, whole[1] ^ 1
    counts = weight.numel(), whole[1].numel()
    assert quantize_and_compare(weight, *flipped, backend="numba") == counts
