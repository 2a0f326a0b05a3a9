"""An engine in its own process: it passes as one here, and may die or hang."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from syncguard.engines.hosting import HostedEngine
from syncguard.errors import EngineLost, SyncguardError, Unsupported, UsageError
from syncguard.guard import Guard
from syncguard.timelimit import TimeLimitExceeded, time_limit
from syncguard.verdict import Reason, Status, Verdict
from tests.checks.fakes import VOCABULARY, FakeEngine, FakeLearner, Heard
from tests.processes import living

HERE = "tests.engines.hosted"

Host = Callable[..., HostedEngine]


@pytest.fixture
def host() -> Iterator[Host]:
    hosted: list[HostedEngine] = []

    def start(function: str, *arguments: Any, timeout_s: float = 60.0) -> HostedEngine:
        hosted.append(HostedEngine(f"{HERE}:{function}", arguments, timeout_s))
        return hosted[-1]

    yield start
    for each in hosted:
        each.close()
        assert living(each._process.pid) == {}


def synced(engine: Any, **options: Any) -> dict[str, Verdict]:
    guard = Guard(FakeLearner(), engine, Heard(), vocabulary=VOCABULARY, **options)
    _, verdicts = guard.sync(bucket_bytes=600)
    return {verdict.check: verdict for verdict in verdicts}


def test_a_hosted_engine_passes_as_one_here_does(host: Host) -> None:
    engine = host("healthy")
    there, here = synced(engine), synced(FakeEngine())
    assert {name: (v.status, v.reason, v.coverage) for name, v in there.items()} == {
        name: (v.status, v.reason, v.coverage) for name, v in here.items()
    }
    assert (engine.name, engine.wire) == ("fake", "bf16")
    assert not hasattr(engine, "seams")
    assert not hasattr(engine, "preserved")


def test_one_that_dies_in_the_middle_of_a_sync_leaves_it_unchecked(host: Host) -> None:
    engine = host("failing", {"send": "dies"})
    assert len(living(engine._process.pid)) == 2
    verdicts = synced(engine)
    counted = {name: v for name, v in verdicts.items() if name != "observability" and v.counts}
    assert {v.status for v in counted.values()} == {Status.NOT_RUN}
    assert {v.reason for v in counted.values()} == {Reason.ERROR}
    told = counted["session"].message
    assert "the engine is gone: its process was killed by SIGKILL" in told
    assert "while it was asked for 'send'" in told
    assert "it wrote: CUDA error: out of memory" in told
    assert living(engine._process.pid) == {}


def test_one_that_hangs_between_syncs_is_ended_in_time(host: Host) -> None:
    engine = host("failing", {"probe_exact": "hangs", "rederive": "unsupported"})
    engine._timeout_s = 1.0
    began = time.monotonic()
    verdicts = synced(engine)
    assert time.monotonic() - began < 10
    assert verdicts["session"].status is Status.PASS
    assert verdicts["exact-probe"].reason is Reason.ERROR
    assert "no answer to 'probe_exact' within 1 s" in verdicts["exact-probe"].message
    assert "the engine is gone" in verdicts["finite"].message
    assert living(engine._process.pid) == {}
    with pytest.raises(EngineLost, match="the engine is gone"):
        engine.begin(2, "2")


def test_the_time_limit_of_a_check_ends_it_too(host: Host) -> None:
    engine = host("failing", {"layers": "hangs"})
    with pytest.raises(TimeLimitExceeded), time_limit(0.3):
        engine.layers()
    with pytest.raises(EngineLost, match=r"'layers' was broken off \(no answer within 0.3 s\)"):
        engine.storage()
    assert living(engine._process.pid) == {}


def test_errors_come_back_as_what_they_are(host: Host) -> None:
    engine = host("failing", {"layers": "unsupported", "storage": "raises"})
    with pytest.raises(Unsupported, match="it has none"):
        engine.layers()
    with pytest.raises(SyncguardError, match="ZeroDivisionError: a defect"):
        engine.storage()
    assert engine.environment() == {"engine": "fake"}
    engine.close()
    with pytest.raises(EngineLost, match="it was closed"):
        engine.environment()


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        ("misused", UsageError, "there is no such quantization"),
        ("absent", EngineLost, "its process ended with exit code 7 while it was asked for 'start'"),
        ("nowhere", SyncguardError, "has no attribute 'nowhere'"),
    ],
)
def test_one_that_does_not_start(function: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        HostedEngine(f"{HERE}:{function}", ())
