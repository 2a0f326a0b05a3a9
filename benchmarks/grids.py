"""MXFP8: quantize, quantize and compare, dequantize; against a copy, and against vLLM's quantizer.

Traffic in bytes a weight, as in the issue's table: quantize reads 2 and writes 1 + 1/32, quantize
and compare reads 2 + 1 + 1/32, dequantize reads 1 + 1/32 and writes 2. Outputs are allocated
before: fresh memory costs more than the computation. vLLM's quantizer has no such option; it is
compared with once as it comes and once with an allocator that keeps its temporaries.
"""

from __future__ import annotations

import torch
from _measure import (
    Row,
    Spread,
    at_least,
    copy_bandwidth,
    keep_freed_memory,
    machine,
    not_run,
    noted,
    ratios,
    record,
    rounds,
    share_of_copy,
    use_all_cores,
)

from syncguard.grids import dequantize, quantize, quantize_and_compare

_SHAPE = 16384, 4096
_ROUNDS = 20


def _rows() -> list[Row]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(_SHAPE, generator=generator).mul_(0.02).bfloat16()
    elements, scales = quantize(weight)
    out = elements.clone(), scales.clone()
    values = torch.empty_like(weight)
    count, weights = rounds(_ROUNDS), weight.numel()
    grid_bytes = weights + weights // 32

    def compare() -> None:
        if quantize_and_compare(weight, elements, scales) != (0, 0):
            raise AssertionError("the quantized weight differs from itself")

    def share(name: str, function: object, traffic: int, bound: float) -> Row:
        assert callable(function)  # noqa: S101
        spread = share_of_copy(function, traffic, count)
        return at_least(f"{name}, share of copy", spread, "ratio", bound)

    rows = [
        share(
            "quantize bf16 to MXFP8",
            lambda: quantize(weight, out=out),
            2 * weights + grid_bytes,
            0.3,
        ),
        share("quantize and compare", compare, 2 * weights + grid_bytes, 0.3),
        share(
            "dequantize MXFP8 to bf16",
            lambda: dequantize(elements, scales, out=values),
            grid_bytes + 2 * weights,
            0.8,
        ),
    ]
    name = "quantize bf16 to MXFP8, speed over vLLM's CPU quantizer"
    try:
        from vllm.model_executor.layers.quantization.utils import mxfp8_utils
    except ImportError as error:
        return [*rows, not_run(name, "ratio", "at least 4", str(error))]
    theirs = mxfp8_utils._mxfp8_e4m3_quantize_torch

    def speed() -> Spread:
        return ratios(
            lambda: quantize(weight, out=out), lambda: theirs(weight), max(3, count // 4)
        )[0]

    usual = speed()
    keep_freed_memory()
    return [
        *rows,
        at_least(name, speed(), "ratio", 4),
        noted(f"{name} as it comes, faulting memory in", usual, "ratio"),
    ]


if __name__ == "__main__":
    use_all_cores()
    print(f"  {machine()}")
    record([copy_bandwidth(rounds(_ROUNDS)), *_rows()])
