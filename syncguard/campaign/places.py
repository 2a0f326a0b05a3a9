"""The places where faults are armed: a stub of any topology, or a live engine."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from syncguard.campaign.live import LIVE, Choice
from syncguard.campaign.pins import Pins, unmet
from syncguard.errors import Unsupported
from syncguard.faults import World
from syncguard.protocols import Engine

if TYPE_CHECKING:
    from syncguard.stubs import Topology

__all__ = ["ENGINES", "Place", "kind", "make_place", "packages_of", "prepare", "refusal", "seeded"]

ENGINES: Final = ("stub", *LIVE)
"""Engines that campaigns run on."""

_FREE: Final = Pins()


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


def make_place(engine: str, topology: Mapping[str, Any], seed: int, pins: Pins = _FREE) -> Place:
    """Start an engine on other weights than the learner's.

    Args:
        engine: One of `ENGINES`.
        topology: Fields of the topology that are not the default's.
        seed: Of the weights.
        pins: What is fixed whatever the topology.

    Raises:
        Unsupported: The engine cannot be of this topology.
    """
    chosen = _chosen(engine, topology, pins)
    return _live(engine, chosen, seed) if isinstance(chosen, Choice) else _stub(chosen, seed)


def kind(engine: str, topology: Mapping[str, Any], pins: Pins = _FREE) -> str:
    """What is alike for topologies that one and the same engine can be of.

    Raises:
        Unsupported: The engine cannot be of this topology.
    """
    return str(_chosen(engine, topology, pins))


def refusal(engine: str, topology: Mapping[str, Any], pins: Pins = _FREE) -> str:
    """Why an engine cannot be of a topology; empty if it can."""
    try:
        _chosen(engine, topology, pins)
    except Unsupported as error:
        return str(error)
    return ""


def packages_of(engine: str) -> tuple[str, ...]:
    """Distributions that an engine's cells depend on."""
    return ("torch", *(LIVE[engine].packages if engine in LIVE else ()))


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


def _chosen(engine: str, topology: Mapping[str, Any], pins: Pins) -> "Choice | Topology":
    """What an engine is to be.

    Raises:
        Unsupported: It cannot.
    """
    if engine in LIVE:
        return LIVE[engine].choose(topology, pins)
    from syncguard.sides import stub_topology
    from syncguard.stubs import Topology

    fixed = asdict(stub_topology(pins.model)) if pins.model else {}
    fixed.pop("quantization", None)
    if pins.quantization:
        fixed["quantization"] = pins.quantization
    if missing := unmet(topology, fixed):
        raise Unsupported(f"needs {', '.join(missing)}, which {pins.model or 'the stub'} is not")
    return Topology(**{**topology, **fixed})


def _stub(topology: "Topology", seed: int) -> Place:
    from syncguard.sides import brought_up
    from syncguard.stubs import make_stub_engine, make_stub_learner

    world = World(
        lambda: make_stub_learner(topology, seed=seed),
        lambda: make_stub_engine(topology, seed=seed),
    )
    export = world.learner.weights  # a fault that is armed later does not reach this one

    def start_cold() -> Engine:
        return brought_up(make_stub_engine(topology, seed=seed), list(export()))

    nbytes = sum(tensor.nbytes for _, tensor in export())
    return Place(world, topology.vocab, nbytes, str(topology), start_cold)


def _live(engine: str, choice: Choice, seed: int) -> Place:
    from syncguard.sides import make_engine, make_learner, make_model, start_cold

    checkpoint = make_model(engine, choice.model, choice.quantization)
    settings = {"ranks": choice.ranks} if choice.ranks > 1 else {}
    world = World(
        lambda: make_learner(checkpoint, choice.quantization, seed, choice.wire),
        lambda: make_engine(
            engine, checkpoint, choice.quantization, choice.path, seed, settings, choice.process
        ),
    )
    export = world.learner.weights  # a fault that is armed later does not reach this one

    def cold() -> Engine:
        learner: Any = SimpleNamespace(weights=export)
        return start_cold(engine, checkpoint, learner, choice.quantization)

    nbytes = sum(tensor.numel() * tensor.element_size() for _, tensor in export())
    vocabulary: int = checkpoint.config["vocab_size"]
    second = LIVE[engine].second and choice.alone
    return Place(world, vocabulary, nbytes, str(choice), cold if second else None)


@cache
def _warm_up() -> None:
    """Run one stub once: kernels are compiled or read from the cache, modules imported."""
    from syncguard.campaign.flow import FLOWS, Syncs
    from syncguard.checks import CHECKS

    place = make_place("stub", {}, 0)
    syncs = Syncs(place, list(CHECKS), 300.0, 0, lambda: place.nbytes)
    for turn in FLOWS["smoke"].load:
        syncs.sync(turn)
