"""Engines to be hosted in another process, which do there as they are told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING

from syncguard.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from tests.checks.fakes import FakeEngine


def healthy() -> "FakeEngine":
    from tests.checks.fakes import FakeEngine

    return FakeEngine()


def _die() -> None:
    sys.stderr.write("CUDA error: out of memory\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    while True:
        time.sleep(60)


DEEDS: MappingProxyType[str, Callable[[], None] | BaseException] = MappingProxyType(
    {
        "dies": _die,
        "hangs": _hang,
        "raises": ZeroDivisionError("a defect"),
        "unsupported": Unsupported("it has none"),
    }
)


def failing(deeds: dict[str, str]) -> "FakeEngine":
    """An engine that does something when it is asked, with a process of its own beside it."""
    engine = healthy()
    engine.failing = {name: DEEDS[deed] for name, deed in deeds.items()}
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return engine


def misused() -> "FakeEngine":
    raise UsageError("there is no such quantization")


def absent() -> "FakeEngine":
    raise SystemExit(7)
