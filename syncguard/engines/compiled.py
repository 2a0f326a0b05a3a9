"""What compiled code reads: the inputs and the constants of what torch's inductor has compiled.

Compiled code calls kernels of its own, which no watch on operators sees. Tensors that it reads are
handed to it at each call, weights included, unless the compiler was told to fold them in: then it
holds them as constants, as a captured graph holds addresses.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from syncguard.engines.reachable import StorageReads, reachable_tensors, storage_of

__all__ = ["Folded", "tensors_of_compiled_graphs"]

_Note = Callable[[torch.Tensor], None]


class Folded:
    """Constants of compiled code, and what of a model they are.

    Some are a model's own tensors. Of others the compiler has made copies; a copy of a single
    number is found again where the number is the address of a native object, as no other number
    is so large.
    """

    def __init__(self) -> None:
        self._reads = StorageReads()  # never entered: only what it is told of counts
        self._numbers: set[int] = set()

    def note(self, tensor: torch.Tensor) -> None:
        """Note one constant."""
        self._reads.note(tensor)
        if (number := _address_in(tensor)) is not None:
            self._numbers.add(number)

    def paths(self, model: torch.nn.Module, caches: tuple[str, ...]) -> frozenset[str]:
        """Paths of the model's tensors that were noted, or whose numbers were."""
        if not self._reads.addresses:
            return frozenset()
        numbered = {
            path
            for path, _, tensor in reachable_tensors(model, caches)
            if self._numbers and _address_in(tensor) in self._numbers
        }
        return self._reads.paths(storage_of(model, caches)) | numbered


@contextlib.contextmanager
def tensors_of_compiled_graphs(handed: _Note, folded: _Note) -> Iterator[None]:
    """Tell of every tensor that compiled code is handed meanwhile, and of those that it holds.

    Args:
        handed: Called with each input, before the code runs.
        folded: Called with each constant, before the code runs.
    """
    from torch._inductor.output_code import CompiledFxGraph

    original = CompiledFxGraph.__call__

    def watched(self: Any, inputs: Any) -> Any:
        for note, values in ((handed, inputs), (folded, _constants(self))):
            for value in values:
                if isinstance(value, torch.Tensor):
                    note(value)
        return original(self, inputs)

    CompiledFxGraph.__call__ = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        CompiledFxGraph.__call__ = original  # type: ignore[method-assign]


def _constants(graph: Any) -> Iterator[Any]:
    """The graph has those that are no weights; of weights it has the names in its code's module."""
    yield from (graph.constants or {}).values()
    held = getattr(graph.current_callable, "__globals__", {})
    yield from (held.get(name) for name in graph.frozen_param_names)


_LEAST: Final = 1 << 32
"""Addresses are larger."""


def _address_in(tensor: torch.Tensor) -> int | None:
    """The address that a tensor consists of, if it may be one."""
    if tensor.device.type != "cpu" or tensor.dtype != torch.int64 or tensor.numel() != 1:
        return None
    number = int(tensor)
    return number if number >= _LEAST else None
