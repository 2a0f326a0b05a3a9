"""What compiled code reads: the inputs of the graphs that torch's inductor has compiled.

Compiled code calls kernels of its own, which no watch on operators sees. But every tensor that it
reads is handed to it at each call, weights included, unless they were folded into it as constants.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["inputs_of_compiled_graphs"]


@contextlib.contextmanager
def inputs_of_compiled_graphs(note: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """Tell of every tensor that is handed to compiled code meanwhile.

    Args:
        note: Called with each, before the code runs.
    """
    from torch._inductor.output_code import CompiledFxGraph

    original = CompiledFxGraph.__call__

    def watched(self: Any, inputs: Any) -> Any:
        for value in inputs:
            if isinstance(value, torch.Tensor):
                note(value)
        return original(self, inputs)

    CompiledFxGraph.__call__ = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        CompiledFxGraph.__call__ = original  # type: ignore[method-assign]
