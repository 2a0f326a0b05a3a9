"""Captured graphs: they read the storages that the forward read when they were captured."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from syncguard.stubs.kernels import Operands

__all__ = ["capture", "live", "once"]


def live(rank: Any, layer: Any) -> Mapping[str, torch.Tensor]:
    """What a layer reads when its modules are looked up anew, as eager code does."""
    del rank
    operands: dict[str, torch.Tensor] = layer.operands()
    return operands


def once(read: Callable[[Any, Any], Mapping[str, torch.Tensor]]) -> Callable[[Any, Any], Operands]:
    """Look each layer's operands up once, for the length of one request."""
    found: dict[tuple[int, str], Operands] = {}

    def looked_up(rank: Any, layer: Any) -> Operands:
        key = rank.number, layer.path
        if key not in found:
            found[key] = Operands(read(rank, layer))
        return found[key]

    return looked_up


class _Graph:
    """Reads of every layer of every rank, as they were at capture."""

    def __init__(self, ranks: Sequence[Any]) -> None:
        # A detached tensor shares the storage, but not what its owner is bound to later.
        self._reads = {
            (rank.number, layer.path): {k: t.detach() for k, t in layer.operands().items()}
            for rank in ranks
            for layer in rank.stub_layers
        }

    def __call__(self, rank: Any, layer: Any) -> Mapping[str, torch.Tensor]:
        return self._reads[rank.number, layer.path]


def capture(ranks: Sequence[Any]) -> _Graph:
    """Capture the forward of one replica; the result is called as `live` is."""
    return _Graph(ranks)
