"""SGLang: with TRT-LLM's MXFP8 kernel every session shuffles every layer again.

The kernel reads the rows of a weight in an order of its own, which the end of a session makes in
place. Nothing puts the rows back when a session begins, so a layer that the session does not bring
is shuffled twice. Runs SGLang's method and session functions on one layer. Needs SGLang where it
can be imported; without FlashInfer the two layout functions are written out in torch. Exits with 1
while the fault is there, and with 0 once it is gone.
"""

import sys
import types
from typing import Any

import torch
from sglang.srt.layers.quantization import fp8, fp8_utils
from sglang.srt.model_loader.loader import DefaultModelLoader

CPU = torch.device("cpu")


def shuffle_matrix_a(matrix: torch.Tensor, epilogue_tile_m: int) -> torch.Tensor:
    """Row r of each 32 goes to place 8 (r mod 4) + r div 4."""
    return matrix.view(-1, 8, 4, matrix.shape[1]).transpose(1, 2).reshape(matrix.shape)


def shuffle_matrix_sf_a(scales: torch.Tensor, epilogue_tile_m: int, **_: int) -> torch.Tensor:
    """Scales with shuffled rows; how they lie within a tile does not matter here."""
    return shuffle_matrix_a(scales, epilogue_tile_m).flatten()


def method() -> Any:
    """SGLang's quantization method of a dense layer, for TRT-LLM's kernel."""
    backend = fp8_utils.Mxfp8DenseGemmBackend.FLASHINFER_TRTLLM
    for module in (fp8, fp8_utils):
        module.resolve_mxfp8_dense_gemm_backend = lambda: backend
    config = fp8.Fp8Config(
        is_checkpoint_fp8_serialized=True, use_mxfp8=True, weight_block_size=[1, 32]
    )
    return fp8.Fp8LinearMethod(config)


def main() -> int:
    """Load one layer, then open and close a session that brings nothing."""
    layouts = types.ModuleType("flashinfer")
    vars(layouts).update(shuffle_matrix_a=shuffle_matrix_a, shuffle_matrix_sf_a=shuffle_matrix_sf_a)
    sys.modules.setdefault("flashinfer", layouts)
    model = torch.nn.Module()
    layer: Any = torch.nn.Module()
    rows = torch.arange(128, dtype=torch.uint8)[:, None].expand(128, 128).contiguous()
    layer.weight = torch.nn.Parameter(rows.view(torch.float8_e4m3fn), requires_grad=False)
    layer.weight_scale_inv = torch.nn.Parameter(
        torch.zeros(128, 4, dtype=torch.uint8), requires_grad=False
    )
    layer.quant_method, layer.deepgemm_mxfp8_input = method(), None
    model.layer = layer
    DefaultModelLoader.postprocess_weights(model, CPU)
    before = layer.weight.view(torch.uint8)[:6, 0].tolist()
    getattr(DefaultModelLoader, "restore_weights_before_loading", lambda *_: None)(model, CPU)
    DefaultModelLoader.postprocess_weights(model, CPU)
    after = layer.weight.view(torch.uint8)[:6, 0].tolist()
    print(f"rows in the kernel's order: {before} ...")
    print(f"after a session that brought nothing: {after} ...")
    print("expected: no change")
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
