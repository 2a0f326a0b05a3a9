"""Requests and answers as files, between a server's workers and whoever started the server.

A server lets strings through only. Its workers are told a number, and read what is asked from a
folder that their environment names: it belongs to one user, so nobody else can make them read, and
what they answer is never mistaken, as each request has files of its own.
"""

import os
from pathlib import Path
from typing import Any, Final

from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.engines.ranks import Reply

__all__ = ["FOLDER", "Exchange"]

FOLDER: Final = "SYNCGUARD_EXCHANGE"
"""The environment variable that names the folder."""


class Exchange:
    """The files in one folder.

    Args:
        folder: The folder; it must be its user's own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of_environment(cls) -> "Exchange":
        """The one that this process was started with.

        Raises:
            KeyError: It was started with none.
        """
        return cls(Path(os.environ[FOLDER]))

    def ask(self, request: int, first: int, world: int, name: str, arguments: bytes) -> None:
        """Write down a request; see `syncguard.engines.vllm.worker.ObservedWorker`."""
        self._write(self._request(request), (first, world, name, arguments))

    def request(self, request: int) -> tuple[int, int, str, bytes]:
        """What is asked.

        Raises:
            FileNotFoundError: Nothing is, under this number.
        """
        first, world, name, arguments = from_bytes(self._request(request).read_bytes())
        return first, world, name, arguments

    def answer(self, reply: Reply) -> None:
        """Write down an answer."""
        self._write(self._reply(reply[0], reply[1]), reply)

    def take(self, request: int, rank: int) -> Reply:
        """What a rank has answered; only once.

        Raises:
            FileNotFoundError: Nothing, to this request.
        """
        file = self._reply(request, rank)
        number, of, answer, error = from_bytes(file.read_bytes())
        file.unlink()
        return number, of, answer, error

    def forget(self, request: int) -> None:
        """Remove a request."""
        self._request(request).unlink(missing_ok=True)

    def _request(self, request: int) -> Path:
        return self._folder / f"{request}.request"

    def _reply(self, request: int, rank: int) -> Path:
        return self._folder / f"{request}.{rank}.reply"

    @staticmethod
    def _write(file: Path, value: Any) -> None:
        """All of it, or nothing under that name."""
        part = file.with_suffix(f"{file.suffix}.part")
        part.write_bytes(to_bytes(value))
        part.rename(file)
