"""The process of vLLM's server: starts it on this machine, waits until it answers, ends it."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from syncguard.engines.supervising import GENTLE_S
from syncguard.errors import EngineLost, UsageError
from syncguard.processes import ended, last_words

__all__ = ["HOST", "Server", "command_line"]

HOST: Final = "127.0.0.1"
_START_S: Final = 240.0
_TICK_S: Final = 0.25
_PATIENCE_S: Final = 2.0
_ENDS_S: Final = 5.0
_BY_SIGNAL: Final = 128
_LONGEST: Final = 32
"""Of a number, in bytes."""

_MODULE: Final = "vllm.entrypoints.openai.api_server"
"""The ``vllm`` command wants a distribution of that name, which builds for CPUs do not have."""

_ALWAYS: Final = ("--enable-scale-out", "--disable-uvicorn-access-log")
"""Tokens in and log-probabilities out want the first."""


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments of vLLM as its server takes them.

    Args:
        arguments: As `syncguard.engines.vllm.launch.engine_arguments` gives them.
    """
    words = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            told = json.dumps(value) if isinstance(value, Mapping) else str(value)
            words += [f"--{flag}", told]
    return [*words, *_ALWAYS]


class Server:
    """One server on a free port of this machine, which nobody but this process keeps alive.

    Args:
        arguments: vLLM's.
        environment: Of its process.
        log: File for what it writes.
        timeout_s: How long it may take to start.
        command: Takes a port and gives what to run; by default vLLM's server.

    Raises:
        UsageError: It did not start; the text has the last lines that it wrote.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
        log: Path,
        timeout_s: float = _START_S,
        command: Callable[[int], list[str]] | None = None,
    ) -> None:
        self.port = _free_port()
        self._log = log
        words = command(self.port) if command else _command(self.port, arguments)
        self._held, theirs = socket.socketpair()
        with log.open("wb") as output, theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, with vLLM's
                [sys.executable, "-m", "syncguard.engines.supervising", *words],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to handle
                env=dict(environment),
            )
        try:
            self._await(timeout_s)
        except BaseException:
            self.close()
            raise

    def require(self) -> None:
        """Make sure that it runs.

        Raises:
            EngineLost: It has ended.
        """
        if (code := self._process.poll()) is not None:
            self._sweep()
            raise EngineLost(f"the engine is gone: {_ended(code)}{self._last_words()}")

    def require_soon(self) -> None:
        """The same where a connection broke, which a process does before it ends.

        Raises:
            EngineLost: It ends.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_S)
        self.require()

    def close(self) -> None:
        """End it with all that it started; safe to call again."""
        with contextlib.suppress(OSError):
            self._held.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(2 * GENTLE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._sweep()
        self._held.close()

    def _sweep(self) -> None:
        """If its supervisor was killed, do what that would have done."""
        if self._process.returncode >= 0:
            return
        with contextlib.suppress(OSError, ValueError):
            self._held.settimeout(_PATIENCE_S)
            os.killpg(int(self._held.recv(_LONGEST)), signal.SIGKILL)

    def _await(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not self._answers():
            if (code := self._process.poll()) is not None:
                raise self._not_started(_ended(code))
            if time.monotonic() > until:
                raise self._not_started(f"it did not answer within {timeout_s:g} s")
            time.sleep(_TICK_S)

    def _answers(self) -> bool:
        """Its socket may be there before its engine is; this is answered once both are."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _not_started(self, why: str) -> UsageError:
        return UsageError(
            "vLLM's server did not start\n"
            f"  got: {why}{self._last_words()}\n"
            "  what to do: run the same with --process own, which starts no server; if that works, "
            "look at the lines above"
        )

    def _last_words(self) -> str:
        told = last_words(self._log)
        return f"; it wrote: {told}" if told else ""


def _command(port: int, arguments: Mapping[str, Any]) -> list[str]:
    address = ["--host", HOST, "--port", str(port)]
    return [sys.executable, "-m", _MODULE, *address, *command_line(arguments)]


def _ended(code: int) -> str:
    """How the server ended, of which its supervisor tells a signal as a shell does."""
    return ended(_BY_SIGNAL - code if code > _BY_SIGNAL else code)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        port: int = listening.getsockname()[1]
        return port
