"""Any engine in a process of its own: one that dies or hangs costs its verdicts, not the run.

The adapter lives in the other process, beside its engine; only observations come back.
"""

import contextlib
import functools
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from syncguard.engines.buckets import write_bucket
from syncguard.engines.calls import call_seams
from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.errors import EngineLost, SyncguardError, Unsupported, UsageError
from syncguard.processes import ended, last_words
from syncguard.seams import Seams

if TYPE_CHECKING:
    import torch

__all__ = ["HostedEngine"]

_TICK_S: Final = 0.5
_CLOSE_S: Final = 10.0
_KINDS: Final[dict[str, type[SyncguardError]]] = {"unsupported": Unsupported, "usage": UsageError}


class HostedError(SyncguardError):
    """What the adapter raised in its process."""


class HostedEngine:
    """Passes every call on to an adapter in another process; implements the same protocol.

    When the process ends, or does not answer in time, it is ended with all that it started, and
    every later call raises `EngineLost` at once.

    Args:
        factory: ``module:function`` that starts the engine there.
        arguments: For the function; they are pickled.
        timeout_s: Limit for the start and for each call.

    Raises:
        UsageError: As the factory does.
        EngineLost: The engine did not start.
    """

    def __init__(self, factory: str, arguments: Sequence[Any], timeout_s: float = 300.0) -> None:
        self._timeout_s = timeout_s
        self._lost = ""
        self._folder = tempfile.TemporaryDirectory(prefix="syncguard-hosted-")
        self._output = Path(self._folder.name) / "output.txt"
        self._pipe, theirs = multiprocessing.connection.Pipe()
        with theirs, self._output.open("wb") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "syncguard.engines.host", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is ours to handle, and all of it can be ended
                env={**os.environ, "TMPDIR": self._folder.name, "PYTHONWARNINGS": "ignore"},
            )
        try:
            self.name, self._methods = self._ask("start", factory, tuple(arguments))
        except BaseException:
            self.close()
            raise

    @property
    def wire(self) -> str:
        """See `syncguard.protocols.Engine`."""
        wire: str = self._ask("wire")
        return wire

    def send(self, bucket: Sequence[tuple[str, "torch.Tensor"]]) -> None:
        """See `syncguard.protocols.Engine`; tensors travel in a file."""
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            self._ask("send", *write_bucket(bucket, Path(folder)))

    def seams(self) -> Seams:
        """See `syncguard.protocols.EngineExtras`: what is called from this process."""
        return call_seams(self)

    def ranks_apart(self) -> bool:
        """See `syncguard.protocols.EngineExtras`."""
        return "on_ranks" in self._methods

    def close(self) -> None:
        """Let the engine end, and end what is left of it."""
        if not self._lost and self._process.poll() is None:
            self._timeout_s = min(self._timeout_s, _CLOSE_S)
            with contextlib.suppress(SyncguardError):
                self._ask("close")
        self._end()
        self._lost = self._lost or "it was closed"
        self._pipe.close()
        self._folder.cleanup()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._methods:
            raise AttributeError(f"the hosted engine has no {name!r}")
        return functools.partial(self._ask, name)

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._lost:
            raise EngineLost(self._lost)
        try:
            self._pipe.send_bytes(to_bytes((name, args, kwargs)))
            self._wait(name)
            kind, value = from_bytes(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._lose(f"{self._cause()} while it was asked for {name!r}") from None
        except EngineLost:
            raise
        except BaseException as error:  # else a late answer would be taken for the next one
            self._lose(f"{name!r} was broken off ({error}), and its process was ended")
            raise
        if kind != "made":
            raise _KINDS.get(kind, HostedError)(value)
        return value

    def _wait(self, name: str) -> None:
        until = time.monotonic() + self._timeout_s
        while not self._pipe.poll(_TICK_S):
            if self._process.poll() is not None and not self._pipe.poll():
                raise EOFError
            if time.monotonic() > until:
                told = f"no answer to {name!r} within {self._timeout_s:g} s"
                raise self._lose(f"{told}, and its process was ended")

    def _lose(self, why: str) -> EngineLost:
        self._end()
        wrote = last_words(self._output)
        self._lost = f"the engine is gone: {why}" + (f"; it wrote: {wrote}" if wrote else "")
        return EngineLost(self._lost)

    def _end(self) -> None:
        """Kill whatever the process has started, and itself; safe to call again."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _cause(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return ended(self._process.wait(_CLOSE_S))
        return "its process closed the pipe"
