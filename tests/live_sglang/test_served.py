"""SGLang's whole engine in processes of its own: it passes, and it may die or hang."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from syncguard.engines.hosting import HostedEngine
from syncguard.guard import Guard
from syncguard.models import resolve_model
from syncguard.reporting import Broadcast
from syncguard.sides import make_engine, make_learner
from syncguard.verdict import Reason, Status, Verdict
from tests.processes import left_behind, living

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("served")]

Served = tuple[HostedEngine, Guard]


@pytest.fixture
def served(models: Path) -> Iterator[Served]:
    checkpoint = resolve_model("tiny-qwen3", models)
    engine = make_engine("sglang", checkpoint, "mxfp8", "", 0, {}, "own")
    assert isinstance(engine, HostedEngine)
    learner = make_learner(checkpoint, "mxfp8", 0, engine.wire)
    vocabulary = checkpoint.config["vocab_size"]
    try:
        yield engine, Guard(learner, engine, Broadcast([]), vocabulary=vocabulary)
    finally:
        engine.close()
        assert left_behind(engine._process.pid) == {}


def synced(guard: Guard) -> list[Verdict]:
    """The verdicts that are no pass."""
    _, verdicts = guard.sync(bucket_bytes=200_000, poison=0xA5)
    return [v for v in verdicts if v.counts and v.status is not Status.PASS]


def scheduler(engine: HostedEngine) -> int:
    found = living(engine._process.pid)
    return next(pid for pid, title in found.items() if title.startswith("sglang::scheduler"))


def test_it_passes_and_a_scheduler_that_dies_is_told(served: Served) -> None:
    engine, guard = served
    rows = engine.fetch_rows("model.layers.0.mlp.down_proj.weight", [0, 3])
    assert rows["elements"].dtype == torch.float8_e4m3fn
    assert len(rows["elements"]) == len(rows["scales"]) == 2
    assert synced(guard) == []
    last = engine.generate([[5, 511, 6]], 1, 0)[0][0]  # SGLang gives it back as token 0
    assert last[:3] == [5, 511, 6]
    os.kill(scheduler(engine), signal.SIGKILL)
    odd = synced(guard)
    assert len(odd) > 10
    assert {(v.status, v.reason) for v in odd} == {(Status.NOT_RUN, Reason.ERROR)}
    assert all("the engine is gone: " in v.message for v in odd)
    assert left_behind(engine._process.pid) == {}


def test_a_scheduler_that_hangs_is_ended_in_time(served: Served) -> None:
    engine, guard = served
    assert synced(guard) == []
    os.kill(scheduler(engine), signal.SIGSTOP)
    engine._timeout_s = 5.0
    began = time.monotonic()
    odd = synced(guard)
    assert time.monotonic() - began < 20
    assert {(v.status, v.reason) for v in odd} == {(Status.NOT_RUN, Reason.ERROR)}
    assert all("within 5 s, and its process was ended" in v.message for v in odd)
    assert left_behind(engine._process.pid) == {}
