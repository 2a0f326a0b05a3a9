"""Each refusal says what, where, expected and got, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from syncguard.grids import dequantize, quantize, quantize_and_compare

if TYPE_CHECKING:
    from collections.abc import Callable

ELEMENTS = torch.zeros(2, 64, dtype=torch.float8_e4m3fn)
SCALES = torch.zeros(2, 2, dtype=torch.uint8)
WEIGHT = torch.zeros(2, 64, dtype=torch.bfloat16)

CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "weight dtype": (
        lambda: quantize(WEIGHT.double()),
        ["quantize: weight dtype", "torch.bfloat16, torch.float16, torch.float32", "torch.float64"],
    ),
    "quantized weight": (lambda: quantize(ELEMENTS), ["float8_e4m3fn", "before quantization"]),
    "reduction dimension": (
        lambda: quantize(WEIGHT[:, :48]),
        ["multiple of 32", "got shape [2, 48]", "reduction dimension comes last"],
    ),
    "scalar weight": (lambda: quantize(WEIGHT[0, 0]), ["multiple of 32", "got shape []"]),
    "rule": (
        lambda: quantize(WEIGHT, rule="rceil"),
        ["no scale rule 'rceil'", "ceil, even, floor, nearest, round_up"],
    ),
    "backend": (
        lambda: quantize(WEIGHT, backend="cuda"),  # type: ignore[arg-type]  # on purpose
        ["no backend 'cuda'", "auto, numba, torch"],
    ),
    "rule of numba": (
        lambda: quantize(WEIGHT, rule="floor", backend="numba"),
        ["backend 'numba'", "only rule 'round_up'", "rule 'floor'", "backend='auto'"],
    ),
    "out shape": (
        lambda: quantize(WEIGHT, out=(ELEMENTS, SCALES[:1])),
        ["quantize: out[1]", "[2, 2]", "[1, 2]"],
    ),
    "out dtype": (
        lambda: dequantize(ELEMENTS, SCALES, out=torch.zeros(2, 64)),
        ["dequantize: out ", "torch.bfloat16", "torch.float32"],
    ),
    "out strides": (
        lambda: dequantize(ELEMENTS, SCALES, out=torch.zeros(64, 2, dtype=torch.bfloat16).T),
        ["contiguous", "True)", "False)"],
    ),
    "elements dtype": (
        lambda: dequantize(WEIGHT, SCALES),
        ["dequantize: elements", "torch.bfloat16", "dequantizes at load holds no elements"],
    ),
    "scales dtype": (
        lambda: dequantize(ELEMENTS, SCALES.float()),
        ["dequantize: scales", "torch.float32", "another grid"],
    ),
    "scales shape": (
        lambda: dequantize(ELEMENTS, torch.zeros(512, dtype=torch.uint8)),
        ["elements of shape [2, 64]", "= [2, 2]", "got [512]", "unswizzle"],
    ),
    "scalar elements": (lambda: dequantize(ELEMENTS[0, 0], SCALES[0, 0]), ["shape []"]),
    "dequantized dtype": (
        lambda: dequantize(ELEMENTS, SCALES, torch.float16),
        ["dtype must be torch.bfloat16 or torch.float32", "torch.float16"],
    ),
    "device of scales": (
        lambda: dequantize(ELEMENTS, SCALES.to("meta")),
        ["one device", "cpu and meta"],
    ),
    "compared shape": (
        lambda: quantize_and_compare(WEIGHT[:1], ELEMENTS, SCALES),
        ["quantize_and_compare", "[1, 64] on cpu", "[2, 64] on cpu", "one shard"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    call, fragments = CASES[case]
    with pytest.raises(ValueError) as caught:
        call()
    for fragment in fragments:
        assert fragment in str(caught.value)
