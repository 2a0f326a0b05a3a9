"""Faults that are run inside SGLang's scheduler processes; each takes the rank's runner first."""

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from syncguard.engines.sglang.compat import rank_of

QKV = "model.layers.0.self_attn.qkv_proj"


def _layer(runner: Any, path: str = QKV) -> Any:
    return runner.model.get_submodule(path)


def _key_rows(layer: Any) -> slice:
    query, key, _ = layer.output_partition_sizes
    return slice(query, query + key)


def give_key(runner: Any, folder: str) -> None:
    """Write down this rank's key shard."""
    layer = _layer(runner)
    rows = _key_rows(layer)
    kept = {
        "weight": layer.weight.data[rows].view(torch.uint8).clone(),
        "scale": layer.weight_scale_inv.data[rows].clone(),
    }
    save_file(kept, Path(folder, f"{rank_of(runner)}.safetensors"))


def take_key(runner: Any, folder: str, shift: int) -> None:
    """Hold the key shard of another rank, in kernels too."""
    layer = _layer(runner)
    rows = _key_rows(layer)
    kept = load_file(Path(folder, f"{(rank_of(runner) + shift) % 2}.safetensors"))
    layer.weight.data[rows] = kept["weight"].view(torch.float8_e4m3fn)
    layer.weight_scale_inv.data[rows] = kept["scale"]
    layer.quant_method._process_mxfp8_linear_weight_scale(layer)


def go_deaf(runner: Any, rank: int) -> None:
    """Let one rank receive buckets and load none."""
    if rank_of(runner) == rank:
        updater = type(runner.weight_updater)
        updater.heard = updater.update_weights_from_tensor
        updater.update_weights_from_tensor = lambda self, **_: (True, "Success")


def hear_again(runner: Any) -> None:
    """Undo `go_deaf`."""
    updater = type(runner.weight_updater)
    if hasattr(updater, "heard"):
        updater.update_weights_from_tensor = updater.heard


def keep_derived(runner: Any, rank: int) -> None:
    """Let one rank keep the derived scales that it has."""
    if rank_of(runner) == rank:
        _layer(runner).quant_method._process_mxfp8_linear_weight_scale = lambda layer: None


def derive_again(runner: Any) -> None:
    """Undo `keep_derived`."""
    vars(_layer(runner).quant_method).pop("_process_mxfp8_linear_weight_scale", None)


def fail_observing(runner: Any, rank: int, seconds: float = 0.0) -> None:
    """Let one rank raise when it is asked for its layers, or answer late."""
    from syncguard.engines.sglang.observer import Observer

    observed = Observer.layers

    def layers(self: Any) -> Any:
        if not seconds:
            raise RuntimeError("out of memory")
        time.sleep(seconds)
        return observed(self)

    if rank_of(runner) == rank:
        Observer.observed = observed  # type: ignore[attr-defined]
        Observer.layers = layers  # type: ignore[method-assign]


def observe_again(runner: Any) -> None:
    """Undo `fail_observing`."""
    from syncguard.engines.sglang.observer import Observer

    del runner
    if hasattr(Observer, "observed"):
        Observer.layers = Observer.observed  # type: ignore[method-assign]
