"""SGLang: weights that it quantized to MXFP8 itself cannot be updated.

Quantizing puts elements in the place of the bf16 parameter, and nothing puts a bf16 parameter back
before a session loads. New weights are cast to E4M3 without a scale; at the session's end the
quantizer is given elements. Runs SGLang's method, loader and session functions on one layer. Needs
SGLang where it can be imported; a quantizer in torch stands in for that of the GPU, which takes
bf16, fp16 and fp32 only too. Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import sys
from typing import Any

import torch
from sglang.srt.layers.quantization import fp8, fp8_utils
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.model_loader.weight_utils import default_weight_loader

CPU = torch.device("cpu")
BLOCK = 32


def quantize(values: torch.Tensor, dtype: torch.dtype, axis: int) -> Any:
    """Elements and scales, rounded up, of blocks of 32 along rows."""
    if values.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise TypeError(f"the quantizer takes bf16, fp16 and fp32, got {values.dtype}")
    blocks = values.float().view(len(values), -1, BLOCK)
    scales = (blocks.abs().amax(-1) / 448).clamp(min=2.0**-126).log2().ceil()
    elements = (blocks / scales.exp2()[..., None]).flatten(1).to(dtype)
    return elements, (scales + 127).to(torch.uint8)


def served(layer: Any) -> torch.Tensor:
    """The values that the layer's elements and scales stand for."""
    scales: torch.Tensor = (layer.weight_scale_inv.float() - 127).exp2()
    blocks: torch.Tensor = layer.weight.float().view(*scales.shape, BLOCK)
    return (blocks * scales[..., None]).flatten(1)


def method() -> Any:
    """SGLang's quantization method of a dense layer; what it derives for a kernel is left out."""
    backend = fp8_utils.Mxfp8DenseGemmBackend.FLASHINFER_CUTLASS
    for module in (fp8, fp8_utils):
        module.resolve_mxfp8_dense_gemm_backend = lambda: backend
    made = fp8.Fp8LinearMethod(fp8.Fp8Config(use_mxfp8=True))
    made._process_mxfp8_linear_weight_scale = lambda layer: None
    return made


def main() -> int:
    """Load, quantize, and update as a session does."""
    fp8_utils._get_triton_mxfp8_downcast = lambda: quantize
    first, second = (torch.randn(64, 64, generator=g(n)).bfloat16() for n in (0, 1))
    model = torch.nn.Module()
    layer: Any = torch.nn.Module()
    layer.weight = torch.nn.Parameter(first.clone(), requires_grad=False)
    layer.quant_method, layer.deepgemm_mxfp8_input = method(), None
    model.layer = layer
    DefaultModelLoader.postprocess_weights(model, CPU)
    print(f"off by at start: {(served(layer) - first.float()).abs().max():.3f}")
    getattr(DefaultModelLoader, "restore_weights_before_loading", lambda *_: None)(model, CPU)
    default_weight_loader(layer.weight, second)
    try:
        DefaultModelLoader.postprocess_weights(model, CPU)
    except TypeError as error:
        print(f"the session's end raises: {error}")
    gap = (served(layer) - second.float()).abs().max()
    print(f"off by after an update: {gap:.3f}")
    print("expected: no error, and as little as at start")
    return int(gap > 0.3)


def g(seed: int) -> torch.Generator:
    """A generator."""
    return torch.Generator().manual_seed(seed)


if __name__ == "__main__":
    sys.exit(main())
