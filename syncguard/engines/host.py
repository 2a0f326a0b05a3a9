"""The process of a hosted engine: makes the engine, and answers what it is asked."""

import contextlib
import importlib
import multiprocessing.connection
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from syncguard.engines.buckets import read_bucket
from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.errors import Unsupported, UsageError
from syncguard.processes import die_with_parent, end_group_with_me

__all__ = ["main"]

_KEPT: Final = ("close", "name", "ranks_apart", "seams", "send", "wire")
"""What is not simply passed on: seams are callables of this process."""


class _Host:
    """Answers by the names of an engine's methods."""

    def __init__(self) -> None:
        self._engine: Any = None

    def start(self, factory: str, arguments: Sequence[Any]) -> tuple[str, tuple[str, ...]]:
        """Start the engine; its name, and the methods that it offers."""
        module, _, function = factory.partition(":")
        self._engine = getattr(importlib.import_module(module), function)(*arguments)
        names = [name for name in dir(self._engine) if not name.startswith("_")]
        return self._engine.name, tuple(
            name
            for name in names
            if name not in _KEPT and callable(getattr(self._engine, name, None))
        )

    def answer(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Carry out one request."""
        if name == "start":
            return self.start(*args)
        if name == "send":
            return self._engine.send(read_bucket(*args))
        asked = getattr(self._engine, name)
        return asked(*args, **kwargs) if callable(asked) else asked


def main() -> None:
    """Answer requests that come through the pipe whose number is the argument, until it closes."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # else the engine's own processes would hold it open
    die_with_parent()
    end_group_with_me()
    pipe = multiprocessing.connection.Connection(descriptor)
    host = _Host()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            name, args, kwargs = from_bytes(pipe.recv_bytes())
            pipe.send_bytes(_carried_out(host, name, args, kwargs))
            if name == "close":
                break


def _carried_out(host: _Host, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
    """The answer to one request; one that cannot be carried is an error like any other."""
    try:
        return to_bytes(("made", host.answer(name, args, kwargs)))
    except Unsupported as error:
        return to_bytes(("unsupported", str(error)))
    except UsageError as error:
        return to_bytes(("usage", str(error)))
    except Exception as error:  # noqa: BLE001 - it is raised again where it was asked
        return to_bytes(("error", f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
