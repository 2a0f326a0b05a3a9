"""Faults planted in a stub for the runs inside tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from syncguard.stubs import StubEngine, StubLearner, make_stub_engine, make_stub_learner

QKV = "model.layers.0.self_attn.qkv_proj"


@contextmanager
def held_back(engine: Any, site: str) -> Iterator[None]:
    """F3: one layer's kernel does not derive anything again."""
    with engine.seams()["post_process"][site].wrap(lambda original: lambda layer: None):
        yield


def stale(seed: int) -> tuple[StubLearner, StubEngine]:
    """A factory of an engine with a stale copy."""
    engine: Any = make_stub_engine(seed=seed)
    engine.planted = held_back(engine, QKV)  # kept: it ends when nothing refers to it
    engine.planted.__enter__()
    return make_stub_learner(seed=seed), engine
