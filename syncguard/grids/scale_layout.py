"""The 128x4 swizzled layout of block scales that Blackwell tensor cores read.

Scales `[rows, blocks]` are padded with zeros to tiles of 128 rows by 4 blocks. A tile is 512
bytes; within it the four 32-row groups of a row interleave, so that 16 bytes hold 4 blocks of 4
rows that are 32 apart. Transformer Engine (`gemm_swizzled_scale_idx`), vLLM
(`swizzle_mxfp8_scale`), torchao (`to_blocked`) and FlashInfer (128x4) all use this order.
"""

from __future__ import annotations

import torch

TILE_ROWS = 128
TILE_BLOCKS = 4
TILE_BYTES = TILE_ROWS * TILE_BLOCKS


def _tiles(rows: int, blocks: int) -> tuple[int, int]:
    return -(-rows // TILE_ROWS), -(-blocks // TILE_BLOCKS)


def swizzled_index(row: int, block: int, blocks: int) -> int:
    """Return where the scale of (`row`, `block`) lies in the flat buffer: the specification.

    Args:
        row: Row of the weight.
        block: Block along the reduction dimension.
        blocks: Number of blocks in a row, `K // 32`.
    """
    tile = (row // TILE_ROWS) * _tiles(1, blocks)[1] + block // TILE_BLOCKS
    in_tile = (row % 32) * 16 + (row % TILE_ROWS) // 32 * 4 + block % TILE_BLOCKS
    return tile * TILE_BYTES + in_tile


def swizzled_size(rows: int, blocks: int) -> int:
    """Return the bytes of the swizzled buffer of scales `[rows, blocks]`, padding included."""
    tile_rows, tile_columns = _tiles(rows, blocks)
    return tile_rows * tile_columns * TILE_BYTES


def swizzle(scales: torch.Tensor) -> torch.Tensor:
    """Lay scales out as 128x4 tiles.

    Args:
        scales: `[rows, blocks]`, uint8 or any other one-byte dtype.

    Returns:
        A flat uint8 tensor of `swizzled_size(rows, blocks)` bytes, padding zero.

    Raises:
        ValueError: If `scales` is not a matrix of one-byte values.
    """
    if scales.ndim != 2 or scales.dtype.itemsize != 1:
        raise ValueError(
            f"swizzle: scales must be a matrix [rows, K // 32] of one-byte values, got shape "
            f"{list(scales.shape)} of {scales.dtype}. Swizzle stacked experts one by one."
        )
    rows, blocks = scales.shape
    tile_rows, tile_columns = _tiles(rows, blocks)
    padded = torch.zeros(
        tile_rows * TILE_ROWS, tile_columns * TILE_BLOCKS, dtype=torch.uint8, device=scales.device
    )
    padded[:rows, :blocks] = scales.view(torch.uint8)
    tiled = padded.view(tile_rows, 4, 32, tile_columns, TILE_BLOCKS)
    return tiled.permute(0, 3, 2, 1, 4).reshape(-1)


def unswizzle(flat: torch.Tensor, rows: int, blocks: int) -> torch.Tensor:
    """Undo `swizzle`; padding is dropped unread.

    Args:
        flat: One-byte values, `swizzled_size(rows, blocks)` of them in any shape.
        rows: Rows of the weight.
        blocks: Blocks along the reduction dimension, `K // 32`.

    Returns:
        Contiguous uint8 `[rows, blocks]`.

    Raises:
        ValueError: If the size or the dtype of `flat` does not fit.
    """
    expected = swizzled_size(rows, blocks)
    if flat.numel() != expected or flat.dtype.itemsize != 1:
        raise ValueError(
            f"unswizzle: scales of {rows} rows x {blocks} blocks take {expected} one-byte values "
            f"in the 128x4 layout, got {flat.numel()} of {flat.dtype}. Pass the buffer with its "
            f"padding, and blocks = K // 32."
        )
    tile_rows, tile_columns = _tiles(rows, blocks)
    tiled = flat.contiguous().view(torch.uint8).view(tile_rows, tile_columns, 32, 4, TILE_BLOCKS)
    padded = tiled.permute(0, 3, 2, 1, 4).reshape(tile_rows * TILE_ROWS, tile_columns * TILE_BLOCKS)
    return padded[:rows, :blocks].contiguous()
