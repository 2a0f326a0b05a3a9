"""Stub twins of a learner and an engine: small, fast, and with the seams of the real ones."""

from syncguard.stubs.engine import NotServing, StubEngine
from syncguard.stubs.learner import StubLearner
from syncguard.stubs.topology import Topology

__all__ = [
    "NotServing",
    "StubEngine",
    "StubLearner",
    "Topology",
    "make_stub_engine",
    "make_stub_learner",
]


def make_stub_engine(topology: Topology | None = None, *, seed: int = 0) -> StubEngine:
    """Start a stub engine on random weights.

    Args:
        topology: Of the engine; small and dense by default.
        seed: Of the weights that it starts on, which are never a learner's of the same seed.
    """
    return StubEngine(topology or Topology(), seed=seed)


def make_stub_learner(topology: Topology | None = None, *, seed: int = 0) -> StubLearner:
    """Build a stub learner on random weights.

    Args:
        topology: Of the model; that of the engine it is to be synchronized with.
        seed: Of the weights and of the batches that it trains on.
    """
    return StubLearner(topology or Topology(), seed=seed)
