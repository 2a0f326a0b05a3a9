"""INT8 with a scale per output channel: quantize and dequantize, as compressed-tensors does.

Rule: `compressed_tensors.quantization`, symmetric, 8 bits, strategy "channel", on a float32 weight
(`calculate_qparams`, then `quantize`): `scale = amax / 127.5`, `element = clamp(x / scale)` rounded
half to even, each operation in float32. The elements reach from -128 to 127: an amax that is
positive loses half a step. An all-zero row gets the scale 2**-23, float32's epsilon. The scalar
specification is `syncguard.grids.int8_reference`.

llm-compressor hands bf16 weights over as they are, and then scales and quotients round to bf16:
another grid. A learner that exports INT8 must say which one it means; here it is float32's.
"""

from __future__ import annotations

import torch

from syncguard.grids.formats import INT8, SOURCE_FORMATS

__all__ = ["dequantize", "quantize"]

_HALF_RANGE = 127.5
_LOWEST, _HIGHEST = -128, 127
_SCALE_OF_ZEROS = 2.0**-23


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize a weight row by row; a row is an output channel.

    Args:
        weight: `[..., N, K]` or `[K]`, bfloat16, float16 or float32, all finite.

    Returns:
        Elements `[..., N, K]` int8 and scales `[..., N, 1]` float32, on the weight's device.

    Raises:
        ValueError: If the weight is empty, of another dtype, or not finite.
    """
    if weight.dtype not in SOURCE_FORMATS or not weight.numel():
        names = ", ".join(str(dtype) for dtype in SOURCE_FORMATS)
        raise ValueError(
            f"quantize: the weight must have elements of dtype {names}, got {weight.dtype} "
            f"{list(weight.shape)}. Pass the tensor that the learner quantizes, before "
            f"quantization."
        )
    source = weight.detach().float()
    largest = source.abs().amax(-1, keepdim=True)
    if not bool(torch.isfinite(largest).all()):
        row = int((~torch.isfinite(largest)).flatten().nonzero()[0])
        raise ValueError(
            f"quantize: row {row} of the weight holds infinity or NaN, for which INT8 has no "
            f"code. Look for the step of the learner that diverged."
        )
    scales = largest / _HALF_RANGE
    scales = torch.where(scales == 0, _SCALE_OF_ZEROS, scales)
    steps = (source / scales).clamp(_LOWEST, _HIGHEST).round()
    return steps.to(INT8.element_dtype), scales


def dequantize(
    elements: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    times: int = 1,
) -> torch.Tensor:
    """Return the values `times * element * scale`: one rounding in float32, then one to `dtype`.

    Args:
        elements: `[..., N, K]` int8.
        scales: `[..., N, 1]` float32.
        dtype: Of the result. bfloat16 does not hold these values exactly.
        times: An integer factor that the elements take first, which is exact up to 2**16.

    Raises:
        ValueError: If shapes or dtypes do not fit.
    """
    expected = [*elements.shape[:-1], 1]
    if elements.dtype != INT8.element_dtype or scales.dtype != INT8.scale_dtype:
        raise ValueError(
            f"dequantize: elements must be {INT8.element_dtype} and scales {INT8.scale_dtype}, "
            f"got {elements.dtype} and {scales.dtype}. E8M0 scales belong to the grid 'mxfp8'."
        )
    if list(scales.shape) != expected:
        raise ValueError(
            f"dequantize: elements of shape {list(elements.shape)} take a scale a row, {expected}, "
            f"got {list(scales.shape)}. A scale per tensor is another grid: repeat it for each row."
        )
    return ((elements.detach().float() * times) * scales).to(dtype)
