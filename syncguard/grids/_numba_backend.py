"""Drive the numba kernels: views, threads, and torch for the blocks the kernels flag as special.

Threads come from Python, since the kernels release the GIL, and not from numba: its thread layers
do not survive a fork, and engines fork.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from syncguard.grids import _numba_kernels, _torch_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from syncguard.grids.scale_rules import ScaleRule

# Fewer blocks than this (2 MiB of bfloat16) are not worth another thread.
BLOCKS_PER_THREAD = 1 << 15

_WORDS = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.uint8: torch.uint8}


def quantize_blocks(
    weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor, rule: ScaleRule
) -> None:
    """Quantize `weight` [B, 32] into `elements` [B, 32] uint8 and `scales` [B] uint8."""
    weight = _supported(weight)
    special, counts = _run(_numba_kernels.quantize, weight, elements, scales)
    if sum(counts):
        blocks = special.nonzero().flatten()
        own_elements, own_scales = torch.empty_like(elements[blocks]), scales[blocks]
        _torch_kernels.quantize_blocks(weight[blocks], own_elements, own_scales, rule)
        elements[blocks], scales[blocks] = own_elements, own_scales


def compare_blocks(
    weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor, rule: ScaleRule
) -> tuple[int, int]:
    """Count differing element and scale bytes between quantized `weight` and the given bytes."""
    weight = _supported(weight)
    special, counts = _run(_numba_kernels.compare, weight, elements, scales)
    found, elements_differ, scales_differ = (sum(column) for column in zip(*counts, strict=True))
    if found:
        blocks = special.nonzero().flatten()
        rest = _torch_kernels.compare_blocks(weight[blocks], elements[blocks], scales[blocks], rule)
        elements_differ, scales_differ = elements_differ + rest[0], scales_differ + rest[1]
    return elements_differ, scales_differ


def dequantize_blocks(elements: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Dequantize `elements` [B, 32] uint8 and `scales` [B] uint8 into `out` [B, 32]."""
    special, counts = _run(_numba_kernels.dequantize, elements, scales, out)
    if sum(counts):
        blocks = special.nonzero().flatten()
        own = torch.empty_like(out[blocks])
        _torch_kernels.dequantize_blocks(elements[blocks], scales[blocks], own)
        out[blocks] = own


def _supported(weight: torch.Tensor) -> torch.Tensor:
    """Return float16 as float32, which holds it exactly; the kernels know no float16."""
    return weight.float() if weight.dtype == torch.float16 else weight


def _run(kernel: Callable[..., Any], *tensors: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    """Run a kernel over equal ranges of blocks, one a thread.

    Args:
        kernel: Takes flat arrays and the array of marks.
        *tensors: Contiguous, first dimension B: [B, 32] or [B].

    Returns:
        Marks of the special blocks, [B] bool, and the kernel's answer for each range.
    """
    blocks = tensors[0].shape[0]
    special = torch.zeros(blocks, dtype=torch.bool)
    arrays = [t.view(_WORDS[t.dtype]).view(blocks, -1).numpy() for t in tensors]
    arrays.append(special.view(blocks, 1).numpy())
    threads = max(1, min(torch.get_num_threads(), blocks // BLOCKS_PER_THREAD))
    bounds = [blocks * i // threads for i in range(threads + 1)]

    def run_range(start: int, stop: int) -> Any:
        return kernel(*(array[start:stop].reshape(-1) for array in arrays))

    if threads == 1:
        return special, [run_range(0, blocks)]
    with ThreadPoolExecutor(threads) as pool:
        return special, list(pool.map(run_range, bounds[:-1], bounds[1:]))
