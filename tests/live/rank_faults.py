"""Faults that are run inside vLLM's worker processes; each takes the worker first."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

QKV = "model.layers.0.self_attn.qkv_proj"


def _layer(worker: Any, path: str = QKV) -> Any:
    return worker.model_runner.model.get_submodule(path)


def _key_rows(layer: Any) -> slice:
    query, key, _ = layer.output_partition_sizes
    return slice(query, query + key)


def give_key(worker: Any, folder: str) -> None:
    """Write down this rank's key shard."""
    layer = _layer(worker)
    rows = _key_rows(layer)
    kept = {
        "weight": layer.weight.data[rows].view(torch.uint8).clone(),
        "weight_scale": layer.weight_scale.data[rows].clone(),
    }
    save_file(kept, Path(folder, f"{worker.rank}.safetensors"))


def take_key(worker: Any, folder: str, shift: int) -> None:
    """Hold the key shard of another rank, in kernels too."""
    layer = _layer(worker)
    rows = _key_rows(layer)
    kept = load_file(Path(folder, f"{(worker.rank + shift) % 2}.safetensors"))
    layer.weight.data[rows] = kept["weight"].view(torch.float8_e4m3fn)
    layer.weight_scale.data[rows] = kept["weight_scale"]
    layer.quant_method.kernel.process_weights_after_loading(layer)


def go_deaf(worker: Any, rank: int) -> None:
    """Let one rank receive buckets and load none."""
    if worker.rank == rank:
        worker.weight_transfer_engine.receive_weights = lambda update_info: None


def hear_again(worker: Any) -> None:
    """Undo `go_deaf`."""
    vars(worker.weight_transfer_engine).pop("receive_weights", None)


def keep_derived(worker: Any, rank: int) -> None:
    """Let one rank keep the derived scales that it has."""
    if worker.rank == rank:
        kernel = _layer(worker).quant_method.kernel
        kernel.process_weights_after_loading = lambda layer: None


def derive_again(worker: Any) -> None:
    """Undo `keep_derived`."""
    vars(_layer(worker).quant_method.kernel).pop("process_weights_after_loading", None)


def fail_observing(worker: Any, rank: int) -> None:
    """Let one rank raise when it is asked for its layers."""

    def layers() -> None:
        raise RuntimeError("out of memory")

    if worker.rank == rank:
        worker.syncguard_observer.layers = layers


def observe_again(worker: Any) -> None:
    """Undo `fail_observing`."""
    vars(worker.syncguard_observer).pop("layers", None)
