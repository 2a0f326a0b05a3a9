"""Makes the two sides of a run from their names."""

import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from syncguard.checkpoints import Checkpoint, TensorEntry, write_copy
from syncguard.errors import Unsupported, UsageError
from syncguard.factories import blamed, imported
from syncguard.hints import did_you_mean
from syncguard.models import resolve_model
from syncguard.protocols import Engine, Learner, lacking

if TYPE_CHECKING:
    import torch

    from syncguard.stubs import Topology

__all__ = [
    "DEFAULT_MODELS",
    "ENGINES",
    "PROCESSES",
    "STUB_MODELS",
    "StubModel",
    "brought_up",
    "cache_dir",
    "default_model",
    "make_engine",
    "make_learner",
    "make_model",
    "start_cold",
    "start_hosted",
    "stub_topology",
    "trained_in",
]

EngineFactory = Callable[..., Engine]

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

DEFAULT_MODELS: Final = MappingProxyType(
    {"sglang": "tiny-qwen3", "stub": "stub-dense", "vllm": "tiny-qwen3"}
)
"""What an engine is checked with if no model is named; any other engine like vLLM."""

_RANKED_MODELS: Final = MappingProxyType({"sglang": "tiny-qwen3-wide"})
"""The same on several ranks, where it is another one."""


@dataclass(frozen=True, slots=True)
class StubModel(Checkpoint):
    """A model of the stub, which has no folder: both sides draw their weights from the seed.

    Attributes:
        topology: What both sides are made of.
    """

    topology: "Topology"


def _vllm(
    checkpoint: Checkpoint,
    quantization: str,
    path: str,
    seed: int,
    load: str = "dummy",
    draft: str = "",
    **settings: Any,
) -> Engine:
    from syncguard.engines.vllm import PATHS, VllmEngine

    if draft:
        settings["draft"] = resolve_model(draft, cache_dir()).path
    return VllmEngine(
        checkpoint.path,
        quantization,
        path=path or PATHS[0],
        load_format=load,
        seed=seed,
        **settings,
    )


def _sglang(
    checkpoint: Checkpoint,
    quantization: str,
    path: str,
    seed: int,
    load: str = "dummy",
    *,
    served: bool = False,
    ranks: int = 1,
) -> Engine:
    from syncguard.engines.sglang.adapter import PATHS, SglangEngine

    form: dict[str, Any] = {"served": served, "ranks": ranks} if served or ranks > 1 else {}
    return SglangEngine(
        checkpoint.path, quantization, path=path or PATHS[0], load_format=load, seed=seed, **form
    )


def _stub(checkpoint: Checkpoint, quantization: str, path: str, seed: int) -> Engine:
    from syncguard.stubs import make_stub_engine

    if path:
        raise UsageError("the stub has one path for syncs: leave --path out")
    if not isinstance(checkpoint, StubModel):
        raise UsageError("the stub takes a model of its own, see --model")
    return make_stub_engine(replace(checkpoint.topology, quantization=quantization), seed=seed)


ENGINES: Final[dict[str, EngineFactory]] = {"sglang": _sglang, "stub": _stub, "vllm": _vllm}
"""Engines by name; each takes checkpoint, quantization, sync path and seed, and its settings."""

PROCESSES: Final = ("in", "own", "server")
"""Where an engine runs: in this process, in one of its own, with a scheduler if it has one, or as
the HTTP server that it brings."""

_HOSTED: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {"sglang": {"served": True}, "vllm": {"process": "own"}}
)
"""Settings of an engine that has its process to itself."""

_OPTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "compiled": "--compile",
        "draft": "--draft",
        "folded": "--fold",
        "ranks": "--tp",
        "replicas": "--replicas",
    }
)
"""Settings to the options that they come from."""

_SERVED: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({"vllm": {"process": "server"}})
"""Settings of an engine that is started as a server; its adapter stays in this process."""

_NEVER_IN: Final[Mapping[str, str]] = MappingProxyType({"sglang": "ranks"})
"""The setting with which an engine ends the process that it was started in, when a part dies."""

_FROM_DISK: Final = ("sglang", "vllm")


_TRAINED: Final[Mapping[str, str]] = MappingProxyType({"int8-w8a8": "int8", "none": "none"})
"""The learner's quantization where an engine's is not MXFP8 of some form."""


def trained_in(quantization: str) -> str:
    """The quantization of the learner whose weights an engine holds in this one."""
    return _TRAINED.get(quantization, "mxfp8")


def cache_dir() -> Path:
    """Where made checkpoints are kept, after the XDG base directory specification."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "syncguard" / "models"


def default_model(engine: str, settings: Mapping[str, Any]) -> str:
    """The model that an engine is checked with if none is named.

    Args:
        engine: As for `make_engine`.
        settings: As for `make_engine`.
    """
    if settings.get("ranks", 1) > 1 and engine in _RANKED_MODELS:
        return _RANKED_MODELS[engine]
    return DEFAULT_MODELS.get(engine, DEFAULT_MODELS["vllm"])


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
        return resolve_model(model, cache_dir(), quantization=trained_in(quantization))
    return _stub_model(model, stub_topology(model, topology or {}))


def stub_topology(model: str, topology: Mapping[str, Any] | None = None) -> "Topology":
    """The topology of one of the stub's models.

    Args:
        model: One of `STUB_MODELS`.
        topology: Fields that it must have.

    Raises:
        UsageError: There is no such model.
    """
    from syncguard.stubs import Topology

    if model not in STUB_MODELS:
        raise UsageError(
            f"model {model!r} is none of the stub's{did_you_mean(model, STUB_MODELS)}\n"
            f"  expected: {', '.join(STUB_MODELS)}"
        )
    return Topology(**{**STUB_MODELS[model], **(topology or {})})


def make_engine(
    name: str,
    checkpoint: Checkpoint,
    quantization: str,
    path: str,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    process: str = PROCESSES[0],
) -> Engine:
    """Start an engine.

    Args:
        name: One of `ENGINES`, or ``MODULE:FACTORY`` of a function with their signature.
        checkpoint: The checkpoint whose architecture it serves.
        quantization: ``mxfp8``, ``none``, or another one that the engine knows.
        path: How syncs reach it; empty for the engine's first.
        seed: Of its random numbers.
        settings: Further keyword arguments, which not every engine takes.
        process: One of `PROCESSES`. Ranks of SGLang never run in this one.

    Raises:
        UsageError: There is no such engine, it has no such setting, or it cannot run where it is
            wanted.
        EngineLost: It did not start in a process of its own.
    """
    factory = ENGINES.get(name) or _imported(name)
    settings = settings or {}
    if unknown := _not_taken(factory, settings):
        options = [_OPTIONS.get(setting, setting) for setting in unknown]
        raise UsageError(
            f"engine {name!r} does not know {', '.join(options)}\n  what to do: leave it out"
        )
    if process == "server":
        if name not in _SERVED:
            raise UsageError(
                f"engine {name!r} has no server that syncguard can start\n"
                f"  expected: --process server with {', '.join(_SERVED)}; others run in or own"
            )
        settings = {**settings, **_SERVED[name]}
    if process != "own" and _NEVER_IN.get(name) not in settings:
        return _started(name, lambda: factory(checkpoint, quantization, path, seed, **settings))
    if isinstance(checkpoint, StubModel):
        raise UsageError("the stub runs in this process only: leave --process out")
    from syncguard.engines.hosting import HostedEngine

    given = name, checkpoint, quantization, path, seed, settings
    hosted: Engine = HostedEngine(f"{__name__}:start_hosted", given)
    return hosted


def start_hosted(
    name: str,
    checkpoint: Checkpoint,
    quantization: str,
    path: str,
    seed: int,
    settings: Mapping[str, Any],
) -> Engine:
    """Start an engine in a process that is all its own; see `make_engine`."""
    factory = ENGINES.get(name) or _imported(name)
    given = {**_HOSTED.get(name, {}), **settings}
    return _started(name, lambda: factory(checkpoint, quantization, path, seed, **given))


def start_cold(
    name: str,
    checkpoint: Checkpoint,
    learner: Learner,
    quantization: str,
    settings: Mapping[str, Any] | None = None,
) -> Engine:
    """Start another engine on the learner's weights, to compare a synchronized one with.

    Args:
        name: As for `make_engine`.
        checkpoint: Whose configuration it has.
        learner: Whose weights it loads.
        quantization: As for `make_engine`.
        settings: As for `make_engine`.

    Raises:
        Unsupported: This engine cannot load a checkpoint.
    """
    if name not in _FROM_DISK:
        known = ", ".join(_FROM_DISK)
        raise Unsupported(f"{name} cannot be started on a checkpoint; these can: {known}")
    with tempfile.TemporaryDirectory(prefix="syncguard-cold-") as folder:
        copy = write_copy(checkpoint, learner.weights(), Path(folder))
        return make_engine(name, copy, quantization, "", 0, {**(settings or {}), "load": "auto"})


def brought_up(engine: Engine, weights: Sequence[tuple[str, "torch.Tensor"]]) -> Engine:
    """Give an engine that has not been synchronized its first weights."""
    engine.begin(1, "1")
    engine.send(weights)
    engine.finish()
    engine.probe_exact()  # makes what a serving path makes at first use
    return engine


def make_learner(
    checkpoint: Checkpoint, quantization: str, seed: int, wire: str = "bf16"
) -> Learner:
    """Build the learner of a model.

    Args:
        checkpoint: The model.
        quantization: The engine's; the learner's is `trained_in` of it.
        seed: Of its random numbers.
        wire: What the engine takes, see `syncguard.protocols.Engine.wire`.
    """
    if isinstance(checkpoint, StubModel):
        from syncguard.stubs import make_stub_learner

        topology = replace(checkpoint.topology, quantization=quantization)
        return make_stub_learner(topology, seed=seed)
    from syncguard.learners import TransformersLearner

    trained = trained_in(quantization)
    return TransformersLearner(checkpoint.path, quantization=trained, wire=wire, seed=seed)


def _stub_model(name: str, topology: "Topology") -> StubModel:
    from syncguard.stubs.topology import weight_specs

    tensors = {
        spec.name: TensorEntry("", str(spec.dtype).removeprefix("torch."), spec.shape)
        for spec in weight_specs(topology)
    }
    return StubModel(Path(name), name, {"vocab_size": topology.vocab}, tensors, topology)


def _not_taken(factory: EngineFactory, settings: Mapping[str, Any]) -> list[str]:
    """Settings that a factory does not take."""
    parameters = inspect.signature(factory).parameters
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return []
    return sorted(settings.keys() - parameters.keys())


def _started(name: str, start: Callable[[], Engine]) -> Engine:
    """Start an engine; what goes wrong with somebody's own is no defect of ours.

    Raises:
        UsageError: An adapter's factory failed, or gave something else than an engine.
    """
    if name in ENGINES:
        return start()
    made = blamed(name, start, "which is called with checkpoint, quantization, path and seed")
    if missing := lacking(made, Engine):
        raise UsageError(
            f"engine {name!r}: its factory gave a {type(made).__name__}, which is no engine\n"
            f"  got: nothing named {', '.join(missing)}\n"
            "  what to do: give an object with the methods of syncguard.protocols.Engine"
        )
    return made


def _imported(name: str) -> EngineFactory:
    if (here := os.getcwd()) not in sys.path:  # a command finds what `python -m` would find
        sys.path.append(here)
    return imported(
        name,
        ENGINES,
        "name an importable module and a function in it that takes checkpoint, quantization, path "
        "and seed",
    )
