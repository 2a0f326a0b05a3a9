"""Reads what a live layer holds, by the learner's names and in checkpoint layout."""

from collections.abc import Iterator
from typing import Any, Final

import torch

from syncguard.stubs.experts import ExpertLayer
from syncguard.stubs.shards import Shard, expert_of

__all__ = ["GRIDS", "component_of", "components", "held", "parameters", "part"]

GRIDS: Final = {torch.bfloat16: "bf16", torch.float32: "fp32"}

_BLOCK: Final = 32


def parameters(layer: Any) -> list[str]:
    """The parameters of a layer that hold weights of the learner; scales belong to theirs."""
    return list(dict.fromkeys(shard.parameter for _, shard in held(layer)))


def held(layer: Any, parameter: str = "") -> Iterator[tuple[str, Shard]]:
    """The learner's weights in a layer, or in one of its parameters, with their places.

    Which expert is in a slot is looked up in the live placement.
    """
    for shard in layer.parts:
        if shard.parameter.endswith("weight_scale"):
            continue
        if parameter and shard.parameter != parameter:
            continue
        yield _learner_name(layer, shard), shard


def components(layer: Any, parameter: str) -> dict[str, torch.Tensor] | str:
    """A parameter in checkpoint layout, by component, or why it cannot be read.

    ``elements`` and ``scales`` of MXFP8, else ``values``; experts are stacked by slot.
    """
    if parameter not in layer.matrices:
        return {"values": getattr(layer, parameter).data}
    shape = layer.load_format[parameter].shape
    where = f"{layer.path}.{parameter}"
    weight = getattr(layer, parameter)
    if not weight.numel():
        return f"{where} has size 0: the kernel keeps a packed copy that cannot be read back"
    wanted = {parameter: shape}
    if weight.element_size() == 1:
        wanted[f"{parameter}_scale"] = (*shape[:-1], shape[-1] // _BLOCK)
    for name, expected in wanted.items():
        found = tuple(getattr(layer, name).shape)
        if found != expected:
            return f"{layer.path}.{name} has shape {list(found)} where {list(expected)} is expected"
    canonical = layer.kernel.canonical(layer, parameter)
    if weight.element_size() != 1:
        return {"values": canonical[parameter]}
    return {"elements": canonical[parameter], "scales": canonical[f"{parameter}_scale"]}


def component_of(name: str, first_column: int, tensor: torch.Tensor) -> tuple[int | None, int]:
    """Granule and first byte of a component's rows, for its prints."""
    if name == "scales":
        return 1, first_column // _BLOCK
    return None, first_column * tensor.element_size()


def part(stacked: Any, shard: Shard) -> Any:
    """The rows of one shard of what is indexed by slot, if experts are stacked, and row."""
    return (stacked if shard.slot < 0 else stacked[shard.slot])[shard.rows]


def _learner_name(layer: Any, shard: Shard) -> str:
    if not isinstance(layer, ExpertLayer):
        return shard.weight
    found = expert_of(shard.weight)
    assert found is not None, "experts hold experts' weights"  # noqa: S101
    prefix, slot, rest = found
    return f"{prefix}.experts.{layer.expert_in(slot)}.{rest}"
