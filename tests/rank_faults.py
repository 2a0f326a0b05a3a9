"""Faults that are run in the processes of ranks; each takes the rank's observer first."""

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

QKV = "model.layers.0.self_attn.qkv_proj"


def give_key(observer: Any, folder: str) -> None:
    """Write down this rank's key shard."""
    elements, scales = _held_keys(observer)
    kept = {"elements": elements.view(torch.uint8).clone(), "scales": scales.clone()}
    save_file(kept, Path(folder, f"{observer.rank}.safetensors"))


def take_key(observer: Any, folder: str, shift: int) -> None:
    """Hold the key shard of another rank, in kernels too."""
    elements, scales = _held_keys(observer)
    kept = load_file(Path(folder, f"{(observer.rank + shift) % 2}.safetensors"))
    elements.copy_(kept["elements"].view(elements.dtype))
    scales.copy_(kept["scales"])
    seam = observer.seams()["post_process"][QKV]
    getattr(seam.owner, seam.attribute)(_layer(observer))


def go_deaf(observer: Any, rank: int) -> None:
    """Let one rank of SGLang receive buckets and load none."""
    if observer.rank == rank:
        updater = type(observer.runner.weight_updater)
        updater.heard = updater.update_weights_from_tensor
        updater.update_weights_from_tensor = lambda self, **_: (True, "Success")


def hear_again(observer: Any) -> None:
    """Undo `go_deaf`."""
    updater = type(observer.runner.weight_updater)
    if hasattr(updater, "heard"):
        updater.update_weights_from_tensor = updater.heard


def fail_observing(observer: Any, rank: int, seconds: float = 0.0) -> None:
    """Let one rank raise when it is asked for its layers, or answer late."""
    observed = observer.layers

    def layers() -> Any:
        if not seconds:
            raise RuntimeError("out of memory")
        time.sleep(seconds)
        return observed()

    if observer.rank == rank:
        observer.layers = layers


def observe_again(observer: Any) -> None:
    """Undo `fail_observing`."""
    vars(observer).pop("layers", None)


def _layer(observer: Any) -> Any:
    return observer.runner.model.get_submodule(QKV)


def _held_keys(observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements and scales of the rank's keys, as views."""
    layer = _layer(observer)
    query, key, _ = layer.output_partition_sizes
    rows = slice(query, query + key)
    scales = getattr(layer, "weight_scale", None)
    held = layer.weight_scale_inv if scales is None else scales
    return layer.weight.data[rows], held.data[rows]
