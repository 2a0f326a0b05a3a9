"""Asks the ranks of a live vLLM that have a worker process each."""

import itertools
from typing import Any, Final

from syncguard.engines.carrying import to_bytes
from syncguard.engines.ranks import checked
from syncguard.errors import Unsupported

__all__ = ["WorkerRanks"]

_TIMEOUT_S: Final = 120.0


class WorkerRanks:
    """Ranks in worker processes; see `syncguard.engines.ranks.Ranks`.

    Args:
        llm: vLLM's engine.
        count: How many it has.
        first: Number of the first one among those of all replicas.
        world: How many ranks all replicas have; by default there is this one.
    """

    def __init__(self, llm: Any, count: int, first: int = 0, world: int = 0) -> None:
        self._llm = llm
        self._count = count
        self._first = first
        self._world = world or count
        self._requests = itertools.count(1)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `syncguard.engines.ranks.Ranks`."""
        request = next(self._requests)
        try:
            replies = self._llm.collective_rpc(
                "syncguard_observe",
                timeout=_TIMEOUT_S,
                args=(request, self._first, self._world, name, to_bytes(arguments)),
            )
        except Exception as error:
            raise Unsupported(f"{name}: a rank does not answer: {error}") from error
        return checked(replies, request, self._count, name, self._first)
