"""Makes the two sides of a smoke check from their names."""

import difflib
import importlib
from collections.abc import Callable
from typing import Final

from syncguard.checkpoints import Checkpoint
from syncguard.errors import UsageError
from syncguard.protocols import Engine, Learner

__all__ = ["ENGINES", "make_engine", "make_learner"]

EngineFactory = Callable[[Checkpoint, str, str, int], Engine]


def _vllm(checkpoint: Checkpoint, quantization: str, path: str, seed: int) -> Engine:
    from syncguard.engines.vllm import VllmEngine

    return VllmEngine(checkpoint.path, quantization, path=path, seed=seed)


ENGINES: Final[dict[str, EngineFactory]] = {"vllm": _vllm}
"""Engines by name; each takes checkpoint, quantization, sync path and seed."""


def make_engine(
    name: str, checkpoint: Checkpoint, quantization: str, path: str, seed: int
) -> Engine:
    """Start an engine.

    Args:
        name: One of `ENGINES`, or ``MODULE:FACTORY`` of a function with their signature.
        checkpoint: The checkpoint whose architecture it serves.
        quantization: ``mxfp8`` or ``none``.
        path: How syncs reach it.
        seed: Of its random numbers.

    Raises:
        UsageError: There is no such engine.
    """
    factory = ENGINES.get(name) or _imported(name)
    return factory(checkpoint, quantization, path, seed)


def make_learner(checkpoint: Checkpoint, quantization: str, seed: int) -> Learner:
    """Build the learner of a checkpoint."""
    from syncguard.learners import TransformersLearner

    return TransformersLearner(checkpoint.path, quantization=quantization, seed=seed)


def _imported(name: str) -> EngineFactory:
    module, colon, attribute = name.partition(":")
    if not colon:
        close = difflib.get_close_matches(name, ENGINES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(
            f"unknown engine {name!r}{hint}\n"
            f"  expected: {', '.join(ENGINES)}, or MODULE:FACTORY of an adapter"
        )
    try:
        factory: EngineFactory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"engine {name!r} cannot be imported\n"
            f"  got: {error}\n"
            "  what to do: name an importable module and a function in it that takes checkpoint, "
            "quantization, path and seed"
        ) from error
    return factory
