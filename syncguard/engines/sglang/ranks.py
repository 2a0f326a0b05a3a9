"""Asks the ranks of a live SGLang, each of which is in a scheduler process of its own.

SGLang passes a remote call on to every scheduler and returns nothing. So the question lies in a
file, and each rank leaves its reply beside it. Nobody waits for SGLang's own acknowledgement: that
of a call which was given up may come late, and would be taken for another one's.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.engines.ranks import Reply, checked

__all__ = ["SchedulerRanks", "answer_in", "call_through"]

_QUESTION: Final = "question"
_TIMEOUT_S: Final = 120.0
_TICK_S: Final = 0.002

Call = Callable[..., None]
"""Sends a remote call to every scheduler, with arguments by name that are plain scalars."""


class SchedulerRanks:
    """Ranks in scheduler processes; see `syncguard.engines.ranks.Ranks`.

    Args:
        call: Sends remote calls.
        loop: The engine's event loop, which must run to be told that a process has died.
        world: How many ranks there are.
        timeout_s: How long all of them have for a reply.
    """

    def __init__(
        self,
        call: Call,
        loop: asyncio.AbstractEventLoop,
        world: int,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._call = call
        self._loop = loop
        self._world = world
        self._timeout_s = timeout_s
        self._requests = itertools.count(1)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `syncguard.engines.ranks.Ranks`."""
        request = next(self._requests)
        with tempfile.TemporaryDirectory(prefix="syncguard-ask-") as folder:
            Path(folder, _QUESTION).write_bytes(to_bytes((name, to_bytes(arguments))))
            self._call("syncguard_observe", request=request, world=self._world, folder=folder)
            files = [Path(folder, str(rank)) for rank in range(self._world)]
            until = time.monotonic() + self._timeout_s
            while not all(file.exists() for file in files) and time.monotonic() < until:
                self._loop.run_until_complete(asyncio.sleep(_TICK_S))
            replies = [from_bytes(file.read_bytes()) for file in files if file.exists()]
        return checked(replies, request, self._world, name)


def answer_in(folder: str, rank: int, reply: Callable[[str, bytes], Reply]) -> None:
    """Reply to a question, in the scheduler that was asked.

    Args:
        folder: Where the question lies; when it is gone, nobody waits for a reply any more.
        rank: The scheduler's.
        reply: Makes the reply of a method's name and its arguments.
    """
    try:
        name, arguments = from_bytes(Path(folder, _QUESTION).read_bytes())
        ready = Path(folder, f"{rank}.partial")
        ready.write_bytes(to_bytes(reply(name, arguments)))
        ready.rename(ready.with_suffix(""))
    except FileNotFoundError:
        return


def call_through(engine: Any) -> Call:
    """A remote call of a live engine, which drops whatever acknowledges earlier ones."""
    import zmq
    from sglang.srt.managers import io_struct

    def call(method: str, **parameters: Any) -> None:
        while engine.send_to_rpc.poll(0):
            engine.send_to_rpc.recv(zmq.NOBLOCK)
        request = io_struct.RpcReqInput(method=method, parameters=parameters)
        send(engine.send_to_rpc, request)

    send = getattr(io_struct, "sock_send", None) or (lambda socket, sent: socket.send_pyobj(sent))
    return call
