"""Engines to be hosted in another process, which do there as they are told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from syncguard.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from tests.checks.fakes import FakeEngine


def _dies() -> None:
    sys.stderr.write("CUDA error: out of memory\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def _hangs() -> None:
    while True:
        time.sleep(60)


def _raises() -> None:
    raise ZeroDivisionError("a defect")


def _cannot() -> None:
    raise Unsupported("it has none")


DEEDS: Mapping[str, Callable[[], object]] = MappingProxyType(
    {
        "cannot": _cannot,
        "dies": _dies,
        "hangs": _hangs,
        "raises": _raises,
        "stays": lambda: MappingProxyType({}),
    }
)


class Small:
    """As much of an engine as answers, with a process of its own beside it."""

    name = "small"
    wire = "bf16"

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        self._beside = subprocess.Popen(command)

    def environment(self) -> dict[str, str]:
        return {"engine": "small"}

    def layers(self, deed: str) -> object:
        return DEEDS[deed]()

    def close(self) -> None:
        """Forgets its own process."""


def small() -> Small:
    return Small()


def healthy() -> "FakeEngine":
    from tests.checks.fakes import FakeEngine

    return FakeEngine()


def misused() -> Small:
    raise UsageError("there is no such quantization")


def absent() -> Small:
    raise SystemExit(7)
