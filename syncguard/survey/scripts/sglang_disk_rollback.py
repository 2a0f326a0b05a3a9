"""SGLang: an update from disk that fails "rolls back to original weights", which are the new ones.

The path of the model is set to the new folder before anything is loaded, and the rollback loads
from that path. A network file system that comes back is enough: the answer is a failure, and the
new weights serve. Runs SGLang's own model runner on a CPU. Needs SGLang where it can be imported.
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
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.server_args import PortArgs, ServerArgs
from transformers import AutoModelForCausalLM, Qwen3Config

WEIGHT = "model.layers.0.mlp.down_proj.weight"


def checkpoint(folder: Path, seed: int) -> torch.Tensor:
    """Write a tiny random model, and give one of its weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return load_file(folder / "model.safetensors")[WEIGHT]


def start(folder: Path) -> Any:
    """SGLang's model runner, in this process."""
    arguments = ServerArgs(
        model_path=str(folder),
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
    """Update from another folder, with a file system that fails once."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("old", "new")]
        old, new = (checkpoint(folder, seed) for seed, folder in enumerate(folders))
        runner = start(folders[0])
        load = DefaultModelLoader.load_weights_and_postprocess
        failed: list[int] = []

        def fail_once(*args: Any) -> Any:
            if not failed:
                failed.append(1)
                raise OSError("the network is down")
            return load(*args)

        DefaultModelLoader.load_weights_and_postprocess = staticmethod(fail_once)
        answer = runner.weight_updater.update_weights_from_disk(str(folders[1]), "auto")
    held = dict(runner.model.named_parameters())[WEIGHT].data
    names = {"the old ones": old, "the new ones": new}
    serves = next((name for name, wanted in names.items() if torch.equal(held, wanted)), "others")
    print(f"the update answers: {answer}")
    print(f"the weights that serve: {serves}")
    print("expected: the old ones")
    return int(serves != "the old ones")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
