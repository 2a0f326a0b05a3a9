"""Makes the two sides of a run from their names."""

import difflib
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from syncguard.checkpoints import Checkpoint, TensorEntry
from syncguard.errors import UsageError
from syncguard.models import resolve_model
from syncguard.protocols import Engine, Learner

if TYPE_CHECKING:
    from syncguard.stubs import Topology

__all__ = [
    "DEFAULT_MODELS",
    "ENGINES",
    "STUB_MODELS",
    "StubModel",
    "cache_dir",
    "make_engine",
    "make_learner",
    "make_model",
]

EngineFactory = Callable[[Checkpoint, str, str, int], Engine]

STUB_MODELS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "stub-dense": {},
        "stub-tied": {"tied": True},
        "stub-mla": {"attention": "mla", "kv_heads": 4},
        "stub-moe": {"experts": 4, "shared_expert": True, "dense_layers": 1},
        "stub-ranks": {"experts": 4, "ranks": 2},
        "stub-replicas": {"replicas": 2},
    }
)
"""Models of the stub by name: the fields of `syncguard.stubs.Topology` that are not default."""

DEFAULT_MODELS: Final = MappingProxyType({"stub": "stub-dense", "vllm": "tiny-qwen3"})
"""What an engine is checked with if no model is named; any other engine like vLLM."""


@dataclass(frozen=True, slots=True)
class StubModel(Checkpoint):
    """A model of the stub, which has no folder: both sides draw their weights from the seed.

    Attributes:
        topology: What both sides are made of.
    """

    topology: "Topology"


def _vllm(checkpoint: Checkpoint, quantization: str, path: str, seed: int) -> Engine:
    from syncguard.engines.vllm import VllmEngine

    return VllmEngine(checkpoint.path, quantization, path=path, seed=seed)


def _stub(checkpoint: Checkpoint, quantization: str, path: str, seed: int) -> Engine:
    from syncguard.stubs import make_stub_engine

    if not isinstance(checkpoint, StubModel) or path != "transfer":
        raise UsageError("the stub takes a model of its own, and syncs on path transfer only")
    return make_stub_engine(replace(checkpoint.topology, quantization=quantization), seed=seed)


ENGINES: Final[dict[str, EngineFactory]] = {"vllm": _vllm, "stub": _stub}
"""Engines by name; each takes checkpoint, quantization, sync path and seed."""


def cache_dir() -> Path:
    """Where made checkpoints are kept, after the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "syncguard" / "models"


def make_model(
    engine: str, model: str, quantization: str, topology: Mapping[str, Any] | None = None
) -> Checkpoint:
    """Give the model that both sides are to have.

    Args:
        engine: As for `make_engine`.
        model: One of `STUB_MODELS` for the stub, else as for `syncguard.models.resolve_model`.
        quantization: ``mxfp8`` or ``none``.
        topology: Further fields that a stub's topology must have.

    Raises:
        UsageError: There is no such model.
    """
    if engine != "stub":
        return resolve_model(model, cache_dir(), quantization=quantization)
    if model not in STUB_MODELS:
        close = difflib.get_close_matches(model, STUB_MODELS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(
            f"model {model!r} is none of the stub's{hint}\n  expected: {', '.join(STUB_MODELS)}"
        )
    return _stub_model(model, {**STUB_MODELS[model], **(topology or {})})


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
    """Build the learner of a model."""
    if isinstance(checkpoint, StubModel):
        from syncguard.stubs import make_stub_learner

        topology = replace(checkpoint.topology, quantization=quantization)
        return make_stub_learner(topology, seed=seed)
    from syncguard.learners import TransformersLearner

    return TransformersLearner(checkpoint.path, quantization=quantization, seed=seed)


def _stub_model(name: str, fields: Mapping[str, Any]) -> StubModel:
    from syncguard.stubs import Topology
    from syncguard.stubs.topology import weight_specs

    topology = Topology(**fields)
    tensors = {
        spec.name: TensorEntry("", str(spec.dtype).removeprefix("torch."), spec.shape)
        for spec in weight_specs(topology)
    }
    return StubModel(Path(name), name, {"vocab_size": topology.vocab}, tensors, topology)


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
