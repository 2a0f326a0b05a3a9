"""An engine in its own process: it passes as one here, and may die or hang."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from syncguard.engines.hosting import HostedEngine
from syncguard.errors import EngineLost, SyncguardError, Unsupported, UsageError
from syncguard.guard import Guard
from syncguard.timelimit import TimeLimitExceeded, time_limit
from syncguard.verdict import Verdict
from tests.checks.fakes import VOCABULARY, FakeEngine, FakeLearner, Heard
from tests.processes import left_behind, living

HERE = "tests.engines.hosted"

Host = Callable[[str], HostedEngine]


@pytest.fixture
def host() -> Iterator[Host]:
    hosted: list[HostedEngine] = []

    def start(function: str) -> HostedEngine:
        hosted.append(HostedEngine(f"{HERE}:{function}", ()))
        return hosted[-1]

    yield start
    for each in hosted:
        each.close()
        assert left_behind(each._process.pid) == {}


def synced(engine: Any) -> dict[str, Verdict]:
    guard = Guard(FakeLearner(), engine, Heard(), vocabulary=VOCABULARY)
    _, verdicts = guard.sync(bucket_bytes=600)
    return {verdict.check: verdict for verdict in verdicts}


@pytest.mark.slow
def test_a_hosted_engine_passes_as_one_here_does(host: Host) -> None:
    engine = host("healthy")
    there, here = synced(engine), synced(FakeEngine())
    assert {name: (v.status, v.reason, v.coverage) for name, v in there.items()} == {
        name: (v.status, v.reason, v.coverage) for name, v in here.items()
    }
    assert (engine.name, engine.wire) == ("fake", "bf16")
    assert set(engine.seams()) == {"begin", "finish", "generate", "observe", "send", "version"}
    assert not engine.ranks_apart()
    assert not hasattr(engine, "preserved")


def test_one_that_dies_is_told_with_its_last_words(host: Host) -> None:
    engine = host("small")
    assert len(living(engine._process.pid)) == 3  # one waits for the other's end
    with pytest.raises(EngineLost) as caught:
        engine.layers("dies")
    told = str(caught.value)
    assert told.startswith("the engine is gone: its process was killed by SIGKILL while it was ")
    assert told.endswith("asked for 'layers'; it wrote: CUDA error: out of memory")
    assert left_behind(engine._process.pid) == {}
    with pytest.raises(EngineLost, match="killed by SIGKILL"):
        engine.environment()


def test_one_that_hangs_is_ended_in_time(host: Host) -> None:
    engine = host("small")
    engine._timeout_s = 0.5
    began = time.monotonic()
    with pytest.raises(EngineLost, match=r"no answer to 'layers' within 0.5 s, and its process"):
        engine.layers("hangs")
    assert time.monotonic() - began < 10
    assert left_behind(engine._process.pid) == {}


@pytest.mark.slow
def test_the_time_limit_of_a_check_ends_it_too(host: Host) -> None:
    engine = host("small")
    with pytest.raises(TimeLimitExceeded), time_limit(0.3):
        engine.layers("hangs")
    with pytest.raises(EngineLost, match=r"'layers' was broken off \(no answer within 0.3 s\)"):
        engine.environment()
    assert left_behind(engine._process.pid) == {}


def test_errors_come_back_as_what_they_are(host: Host) -> None:
    engine = host("small")
    with pytest.raises(Unsupported, match="it has none"):
        engine.layers("cannot")
    with pytest.raises(SyncguardError, match="ZeroDivisionError: a defect"):
        engine.layers("raises")
    with pytest.raises(SyncguardError, match="TypeError: cannot pickle 'mappingproxy'"):
        engine.layers("stays")
    assert engine.environment() == {"engine": "small"}
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


def test_nothing_is_left_of_it_when_its_user_is_killed() -> None:
    code = (
        "import time\n"
        "from syncguard.engines.hosting import HostedEngine\n"
        f"print(HostedEngine('{HERE}:small', ())._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        session = int(user.stdout.readline())
        assert len(living(session)) == 3
        user.kill()
    assert left_behind(session) == {}
