"""Observations of a live vLLM model, made where it lives; nothing here returns a weight."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from syncguard.engines.vllm.kernel import kernel_of
from syncguard.engines.vllm.layers import Held, held_weights
from syncguard.fingerprint import row_prints, value_print
from syncguard.grids import canary
from syncguard.observations import (
    ProbeOutput,
    QuantizedCanary,
    Rederivation,
    Unreadable,
    WeightPrint,
)
from syncguard.probes import exact_prints, identity_rows, random_rows

__all__ = ["canonical", "poison", "probe_exact", "probe_random", "rederive", "weight_prints"]

_COMPONENTS = {"weight": "elements", "weight_scale": "scales"}
_IDS_PER_CALL = 4096


def canonical(held: Held) -> dict[str, torch.Tensor]:
    """The readable tensors of one weight, in checkpoint layout; empty if there are none."""
    tensor = held.module._parameters[held.parameter].data
    if tensor.is_meta or not tensor.numel():
        return {}
    scales = held.module._parameters.get(f"{held.parameter}_scale")
    if scales is None or tensor.element_size() != 1:
        return {"values": tensor[held.rows]}
    return {"elements": tensor[held.rows], "scales": scales.data[held.rows]}


def weight_prints(model: Any) -> dict[str, WeightPrint | Unreadable]:
    """See `syncguard.protocols.Engine.weight_prints`."""
    prints: dict[str, WeightPrint | Unreadable] = {}
    for held in held_weights(model):
        tensors = canonical(held)
        if not tensors:
            prints[held.weight] = Unreadable(held.weight, _why_unreadable(held))
            continue
        first = next(iter(tensors.values()))
        prints[held.weight] = WeightPrint(
            weight=held.weight,
            grid="mxfp8" if "scales" in tensors else _grid_of(first.dtype),
            shape=tuple(first.shape),
            rows={name: row_prints(t, granule=_granule(name)) for name, t in tensors.items()},
            nbytes=sum(t.numel() * t.element_size() for t in tensors.values()),
        )
    return prints


def _why_unreadable(held: Held) -> str:
    name = f"{held.path}.{held.parameter}"
    if held.module._parameters[held.parameter].is_meta:
        return f"{name} is on the meta device: a sync that ended in an error left it without data"
    return f"{name} has size 0: the kernel keeps a packed copy that cannot be read back"


def probe_exact(model: Any) -> dict[str, WeightPrint | Unreadable]:
    """See `syncguard.protocols.Engine.probe_exact`."""
    prints: dict[str, WeightPrint | Unreadable] = {}
    for parts in _by_module(model).values():
        module, kind = parts[0].module, parts[0].kind
        dtype, features = module.params_dtype, _features(module)
        if kind == "embedding":
            rows = _embedding_prints(module, dtype)
        else:
            rows = exact_prints(_serve(module), features, dtype)
        for held in parts:
            mine = rows[held.rows]
            prints[held.weight] = WeightPrint(
                weight=held.weight,
                grid=_grid_of(dtype),
                shape=(mine.size, features),
                rows={"values": mine},
                nbytes=mine.size * features * dtype.itemsize,
            )
    return prints


def probe_random(model: Any, rows: int, seed: int) -> list[ProbeOutput]:
    """See `syncguard.protocols.Engine.probe_random`."""
    outputs = []
    for path, parts in _by_module(model).items():
        module = parts[0].module
        if parts[0].kind == "embedding":
            continue
        x = random_rows(rows, _features(module), seed, module.params_dtype)
        y = _serve(module)(x).float()
        kept = torch.cat([y[:, held.rows] for held in parts], dim=1)
        outputs.append(ProbeOutput(path, tuple(held.weight for held in parts), kept.numpy()))
    return outputs


def rederive(model: Any) -> list[Rederivation]:
    """See `syncguard.protocols.Engine.rederive`."""
    results = []
    for path, parts in _by_module(model).items():
        module = parts[0].module
        for name, fresh in _derived(module).items():
            held = getattr(module, name)
            same_shape = held.shape == fresh.shape
            differing = int((held != fresh).sum()) if same_shape else fresh.numel()
            results.append(
                Rederivation(
                    path=f"{path}.{name}",
                    parts=tuple(held.weight for held in parts),
                    differing=differing * fresh.element_size(),
                    nbytes=fresh.numel() * fresh.element_size(),
                )
            )
    return results


def poison(model: Any, pattern: int) -> dict[str, int]:
    """See `syncguard.protocols.Engine.poison`."""
    counts: dict[str, int] = {}
    for held in held_weights(model):
        tensors = list(canonical(held).values())
        for tensor in tensors:
            tensor.view(torch.uint8).fill_(pattern)
        counts[held.weight] = sum(t.numel() * t.element_size() for t in tensors)
        if held.kind != "plain":
            for name in _derived(held.module):
                getattr(held.module, name).view(torch.uint8).fill_(pattern)
    return counts


def _by_module(model: Any) -> dict[str, list[Held]]:
    groups: dict[str, list[Held]] = {}
    for held in held_weights(model):
        if held.kind != "plain" and held.parameter == "weight":
            groups.setdefault(held.path, []).append(held)
    return groups


def _serve(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def serve(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = module.quant_method.apply(module, x, bias=None)
        return out

    return serve


def _embedding_prints(module: Any, dtype: torch.dtype) -> Any:
    import numpy as np

    parts = []
    for first in range(0, module.org_vocab_size, _IDS_PER_CALL):
        ids = torch.arange(first, min(first + _IDS_PER_CALL, module.org_vocab_size))
        parts.append(value_print(module(ids).to(dtype)))
    return np.concatenate(parts)


def _derived(module: Any) -> dict[str, torch.Tensor]:
    derive = getattr(kernel_of(module), "derive", None)
    fresh: dict[str, torch.Tensor] = derive(module) if derive is not None else {}
    return fresh


def quantize_canary(model: Any) -> QuantizedCanary:
    """See `syncguard.protocols.Engine.quantize_canary`: the kernel of the first MXFP8 layer."""
    from vllm.model_executor.layers.quantization.online import mxfp8

    weight = canary()
    elements, scales = mxfp8.mxfp8_e4m3_quantize(weight)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(elements, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    kernels = (kernel_of(parts[0].module) for parts in _by_module(model).values())
    kernel = next(kernel for kernel in kernels if kernel is not None)
    kernel.process_weights_after_loading(layer)
    served = torch.empty_like(weight)
    for first, rows in identity_rows(weight.shape[1], weight.dtype):
        served[:, first : first + len(rows)] = kernel.apply_weights(layer, rows).T
    return QuantizedCanary(elements, scales, served)


def derived_names(module: Any) -> tuple[str, ...]:
    """Names of the readable tensors that a layer's kernel derives."""
    return tuple(_derived(module))


def _features(module: Any) -> int:
    return int(getattr(module, "embedding_dim", 0) or module.input_size_per_partition)


def _granule(component: str) -> int | None:
    return 1 if component == "scales" else None


def _grid_of(dtype: torch.dtype) -> str:
    from syncguard.engines.vllm.layers import _DTYPE_GRIDS

    return _DTYPE_GRIDS.get(dtype, str(dtype).removeprefix("torch."))


def fetch_rows(model: Any, weight: str, rows: Sequence[int]) -> dict[str, torch.Tensor]:
    """See `syncguard.protocols.Engine.fetch_rows`."""
    held = next(held for held in held_weights(model) if held.weight == weight)
    tensors = canonical(held).items()
    return {
        name: tensor.clone() if tensor.ndim < 2 else tensor[list(rows)].clone()
        for name, tensor in tensors
    }
