"""Drive the numba kernels: views, threads, and torch for the blocks the kernels flag as special.

Threads come from Python, since the kernels release the GIL, and not from numba: its thread layers
do not survive a fork, and engines fork.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from syncguard.grids import _numba_kernels, _torch_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from syncguard.grids.scale_rules import ScaleRule

# Fewer blocks than this (8 MiB of bfloat16, a millisecond) are not worth another thread.
_BLOCKS_PER_THREAD = 1 << 17

# The kernels know no float16. float32 holds it exactly; pieces of this size stay in cache.
_CONVERTED_BLOCKS = 1 << 10

# Results above this are no longer in a cache when they are read; to write them past it saves
# reading what they overwrite.
_STREAMED_BYTES = 32 << 20

_WORDS = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.uint8: torch.uint8}


def quantize_blocks(
    weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor, rule: ScaleRule
) -> None:
    """Quantize `weight` [B, 32] into `elements` [B, 32] uint8 and `scales` [B] uint8."""
    special, _ = _run(_numba_kernels.quantize, weight, elements, scales)
    if special.numel():
        own_elements, own_scales = elements[special], scales[special]
        _torch_kernels.quantize_blocks(weight[special], own_elements, own_scales, rule)
        elements[special], scales[special] = own_elements, own_scales


def compare_blocks(
    weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor, rule: ScaleRule
) -> tuple[int, int]:
    """Count differing element and scale bytes between quantized `weight` and the given bytes."""
    special, differ = _run(_numba_kernels.compare, weight, elements, scales)
    rest = _torch_kernels.compare_blocks(weight[special], elements[special], scales[special], rule)
    return differ[0] + rest[0], differ[1] + rest[1]


def dequantize_blocks(elements: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Dequantize `elements` [B, 32] uint8 and `scales` [B] uint8 into `out` [B, 32]."""
    streams = out.nbytes > _STREAMED_BYTES and not out.data_ptr() % _numba_kernels.STREAM_ALIGNMENT
    kernel = partial(_numba_kernels.dequantize, stream=True if streams else None)
    special, _ = _run(kernel, elements, scales, out)
    if special.numel():
        own = out[special]
        _torch_kernels.dequantize_blocks(elements[special], scales[special], own)
        out[special] = own


def _run(
    kernel: Callable[..., tuple[int, int, int]], *tensors: torch.Tensor
) -> tuple[torch.Tensor, tuple[int, int]]:
    """Run a kernel over ranges of blocks, one a thread.

    Args:
        kernel: Takes a flat array for each tensor and one for marks; returns how many blocks it
            marked as special, and two counts.
        *tensors: Contiguous [B, 32] or [B].

    Returns:
        Indices of the special blocks, and the sums of the kernel's two counts.
    """
    blocks = tensors[0].shape[0]
    # Not torch.zeros: its threads would spin for a while on the cores the kernels are to use.
    marks = np.zeros(blocks, dtype=np.bool_)

    def run_range(start: int, stop: int) -> tuple[int, int, int]:
        converts = tensors[0].dtype == torch.float16
        step = _CONVERTED_BLOCKS if converts else max(1, stop - start)
        pieces = [slice(i, min(i + step, stop)) for i in range(start, stop, step)]
        counts = [
            kernel(*(_flat(tensor[piece]) for tensor in tensors), marks[piece]) for piece in pieces
        ]
        found, first, second = (sum(column) for column in zip((0, 0, 0), *counts, strict=True))
        return found, first, second

    threads = max(1, min(torch.get_num_threads(), blocks // _BLOCKS_PER_THREAD))
    if threads == 1:
        counts = [run_range(0, blocks)]
    else:
        bounds = [blocks * i // threads for i in range(threads + 1)]
        with ThreadPoolExecutor(threads) as pool:
            counts = list(pool.map(run_range, bounds[:-1], bounds[1:]))
    found, first, second = (sum(column) for column in zip(*counts, strict=True))
    # Special blocks are rare: look for marks only if there are any.
    special = np.flatnonzero(marks) if found else np.zeros(0, dtype=np.int64)
    return torch.from_numpy(special), (first, second)


def _flat(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the integers a kernel works on: the tensor's own memory, or float16 converted."""
    if tensor.dtype == torch.float16:
        tensor = tensor.float()
    array: np.ndarray[Any, Any] = tensor.view(_WORDS.get(tensor.dtype, tensor.dtype)).numpy()
    return array.reshape(-1)
