"""The places where faults are armed: a stub of any topology, or a live engine."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from syncguard.campaign.live import LIVE, live_model
from syncguard.errors import Unsupported
from syncguard.faults import World
from syncguard.protocols import Engine

__all__ = ["ENGINES", "Place", "make_place", "prepare", "refusal", "seeded"]

ENGINES: Final = ("stub", *LIVE)
"""Engines that campaigns run on."""


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
    return _live(engine, topology, seed) if engine in LIVE else _stub(topology, seed)


def refusal(engine: str, topology: Mapping[str, Any]) -> str:
    """Why an engine cannot be of a topology; empty if it can."""
    return LIVE[engine].refusal(topology) if engine in LIVE else ""


@contextmanager
def prepare(engine: str) -> Iterator[None]:
    """Import what children need, so that a fork of this process starts at once.

    Nothing here may start threads that compute: a child would wait for them for ever.

    Raises:
        UsageError: The engine is not installed.
    """
    if engine in LIVE:
        LIVE[engine].prepare()
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
    from syncguard.sides import brought_up
    from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

    topology = Topology(**fields)
    world = World(
        lambda: make_stub_learner(topology, seed=seed),
        lambda: make_stub_engine(topology, seed=seed),
    )
    export = world.learner.weights  # a fault that is armed later does not reach this one

    def start_cold() -> Engine:
        return brought_up(make_stub_engine(topology, seed=seed), list(export()))

    nbytes = sum(tensor.nbytes for _, tensor in export())
    return Place(world, topology.vocab, nbytes, str(topology), start_cold)


def _live(engine: str, fields: Mapping[str, Any], seed: int) -> Place:
    from syncguard.learners import TransformersLearner
    from syncguard.sides import make_engine, make_model, start_cold

    mode = LIVE[engine].mode(fields)
    if mode is None or refusal(engine, fields):
        raise Unsupported(refusal(engine, fields))
    quantization, wire, name = mode
    model, path = live_model(fields), fields.get("path", "")
    checkpoint = make_model(engine, model, quantization)
    world = World(
        lambda: TransformersLearner(
            checkpoint.path, quantization=quantization, wire=wire, seed=seed
        ),
        lambda: make_engine(engine, checkpoint, name, path, seed),
    )
    export = world.learner.weights  # a fault that is armed later does not reach this one

    def cold() -> Engine:
        return start_cold(engine, checkpoint, SimpleNamespace(weights=export), name)

    nbytes = sum(tensor.numel() * tensor.element_size() for _, tensor in export())
    told = f"{model}, quantization {name}" + (f", path {path}" if path else "")
    vocabulary: int = checkpoint.config["vocab_size"]
    return Place(world, vocabulary, nbytes, told, cold if LIVE[engine].second else None)


@cache
def _warm_up() -> None:
    """Run one stub once: kernels are compiled or read from the cache, modules imported."""
    from syncguard.campaign.flow import FLOWS, Syncs
    from syncguard.checks import CHECKS

    place = make_place("stub", {}, 0)
    syncs = Syncs(place, list(CHECKS), 300.0, 0, lambda: place.nbytes)
    for turn in FLOWS["smoke"].load:
        syncs.sync(turn)
