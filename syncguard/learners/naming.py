"""What each parameter of a transformers model is for, told by the module that owns it."""

from collections.abc import Mapping
from typing import Final

from torch import nn

__all__ = ["kinds", "low_precision_modules", "ties"]

_ROUTER_NAMES: Final = ("gate", "router", "shared_expert_gate")


def kinds(model: nn.Module) -> Mapping[str, str]:
    """Tell the kind of every parameter and persistent buffer, by name, in model order.

    Kinds are those of `syncguard.observations.LearnerLayer`. Tied parameters are listed under
    each of their names.
    """
    head = _head(model)
    found: dict[str, str] = {}
    for path, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            found[_join(path, own)] = _kind(path, module, own, parameter.ndim, head)
        for own in module._buffers:
            if own not in module._non_persistent_buffers_set and module._buffers[own] is not None:
                found[_join(path, own)] = "buffer"
    order = {name: number for number, name in enumerate(model.state_dict())}
    return dict(sorted(found.items(), key=lambda item: order[item[0]]))


def low_precision_modules(model: nn.Module) -> Mapping[str, nn.Linear]:
    """The linear layers that an MXFP8 recipe quantizes: all but the head and routers."""
    head = _head(model)
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and _kind(path, module, "weight", module.weight.ndim, head) in ("expert", "linear")
    }


def ties(model: nn.Module) -> Mapping[str, str]:
    """Parameters that are another one under a second name, with its first name."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        original = first.setdefault(id(parameter), name)
        if original != name:
            tied[name] = original
    return tied


def _head(model: nn.Module) -> nn.Module | None:
    getter = getattr(model, "get_output_embeddings", None)
    head = getter() if getter is not None else None
    return head if isinstance(head, nn.Module) else None


def _kind(path: str, module: nn.Module, own: str, dimensions: int, head: nn.Module | None) -> str:
    if own.endswith("bias"):
        return "bias"
    if module is head:
        return "head"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if path.rpartition(".")[2] in _ROUTER_NAMES:
        return "router"
    if ".experts" in path:
        return "expert"
    return "linear" if dimensions > 1 else "norm"


def _join(path: str, own: str) -> str:
    return f"{path}.{own}" if path else own
