"""SGLang: a Qwen3 mixture whose configuration keeps some layers dense gets experts in them.

``mlp_only_layers`` is not read. The checkpoint has no weights for such experts, and no error is
raised: they serve what the memory held. Its dense weights are dropped. Runs SGLang's own model
runner on a CPU. Needs SGLang where it can be imported.
Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}

import torch
from safetensors.torch import load_file
from sglang.benchmark import one_batch
from sglang.srt import runtime_context
from sglang.srt.server_args import PortArgs, ServerArgs
from transformers import AutoModelForCausalLM, Qwen3MoeConfig


def checkpoint(folder: Path) -> set[str]:
    """Write a tiny random mixture whose first layer is dense, and give that layer's weights."""
    config = Qwen3MoeConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=256,
        mlp_only_layers=[0],
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return {name for name in load_file(folder / "model.safetensors") if ".layers.0.mlp." in name}


def start(folder: str) -> Any:
    """SGLang's model runner, in this process."""
    arguments = ServerArgs(
        model_path=folder,
        device="cpu",
        dtype="bfloat16",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        skip_tokenizer_init=True,
        max_total_tokens=512,
        max_running_requests=2,
        mem_fraction_static=0.05,
        disable_cuda_graph=True,
        disable_radix_cache=True,
        log_level="error",
    )
    arguments.resolve_once()
    rank = runtime_context.spawn_world_rank(arguments, tp_rank=0, pp_rank=0)
    ranks = runtime_context.SpawnRanks(world_rank=rank, gpu_id=0)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    one_batch._init_process_global_configs()
    one_batch.get_tokenizer = lambda *_, **__: None
    runner, _ = one_batch.load_model(arguments, PortArgs.init_new(arguments), 0, 0)
    return getattr(runner, "torch_runner", runner)


def main() -> int:
    """Start on the checkpoint: its first layer must be dense."""
    with tempfile.TemporaryDirectory() as scratch:
        given = checkpoint(Path(scratch))
        runner = start(scratch)
    held = {name for name, _ in runner.model.named_parameters() if ".layers.0.mlp." in name}
    print(f"the checkpoint has: {sorted(given)}")
    print(f"the model has: {sorted(held)}")
    print("expected: no experts in layer 0")
    return int(any("experts" in name for name in held))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
