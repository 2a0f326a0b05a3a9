"""The 128x4 layout: the scalar index is the specification."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.grids import swizzle, swizzled_index, swizzled_size, unswizzle

RAGGED = [(1, 1), (127, 3), (128, 4), (129, 5), (200, 18), (256, 8), (300, 1), (33, 33)]


def scales_of(rows: int, blocks: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * 1000 + blocks)
    return torch.randint(1, 256, (rows, blocks), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(("rows", "blocks"), RAGGED)
def test_every_scale_lies_at_its_index_and_the_rest_is_zero(rows: int, blocks: int) -> None:
    scales = scales_of(rows, blocks)
    expected = [0] * swizzled_size(rows, blocks)
    for row in range(rows):
        for block in range(blocks):
            expected[swizzled_index(row, block, blocks)] = int(scales[row, block])
    assert swizzle(scales).tolist() == expected


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(0, 20))
def test_unswizzle_undoes_swizzle(rows: int, blocks: int) -> None:
    scales = scales_of(rows, blocks)
    flat = swizzle(scales)
    assert flat.shape == (swizzled_size(rows, blocks),)
    assert torch.equal(unswizzle(flat, rows, blocks), scales)


@given(st.integers(1, 4), st.integers(1, 5))
def test_whole_tiles_are_permuted(tile_rows: int, tile_columns: int) -> None:
    rows, blocks = 128 * tile_rows, 4 * tile_columns
    indices = {swizzled_index(i, j, blocks) for i in range(rows) for j in range(blocks)}
    assert indices == set(range(swizzled_size(rows, blocks)))


@pytest.mark.parametrize(("rows", "blocks"), RAGGED)
def test_torchao_to_blocked_is_the_same(rows: int, blocks: int) -> None:
    utils = pytest.importorskip("torchao.prototype.mx_formats.utils")
    scales = scales_of(rows, blocks)
    theirs = utils.to_blocked(scales, use_triton_kernel=False)
    assert torch.equal(theirs.view(-1), swizzle(scales))


@pytest.mark.parametrize(("rows", "blocks"), RAGGED)
def test_vllm_swizzle_is_the_same(rows: int, blocks: int) -> None:
    utils = pytest.importorskip("vllm.model_executor.layers.quantization.utils.mxfp8_utils")
    scales = scales_of(rows, blocks)
    assert torch.equal(utils.swizzle_mxfp8_scale(scales, rows, blocks * 32), swizzle(scales))


def test_reading_swizzled_scales_as_linear_is_wrong() -> None:
    scales = scales_of(128, 4)
    assert (swizzle(scales).view(128, 4) != scales).float().mean() > 0.9


def test_e8m0_scales_and_strides_are_taken() -> None:
    scales = scales_of(200, 18)
    assert torch.equal(swizzle(scales.view(torch.float8_e8m0fnu)), swizzle(scales))
    assert torch.equal(swizzle(scales.T.contiguous().T), swizzle(scales))
    matrix = swizzle(scales).view(256, 20)
    assert torch.equal(unswizzle(matrix, 200, 18), scales)


def test_swizzle_refuses_stacked_or_wide_scales() -> None:
    with pytest.raises(ValueError, match=r"got shape \[2, 4, 4\] of torch.uint8.*one by one"):
        swizzle(torch.zeros(2, 4, 4, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"one-byte values, got shape \[4, 4\] of torch.float32"):
        swizzle(torch.zeros(4, 4))


def test_unswizzle_refuses_a_buffer_without_padding() -> None:
    with pytest.raises(ValueError, match=r"200 rows x 18 blocks take 5120 .* got 3600 of"):
        unswizzle(torch.zeros(3600, dtype=torch.uint8), 200, 18)
