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
        world: How many there are.
    """

    def __init__(self, llm: Any, world: int) -> None:
        self._llm = llm
        self._world = world
        self._requests = itertools.count(1)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `syncguard.engines.ranks.Ranks`."""
        request = next(self._requests)
        try:
            replies = self._llm.collective_rpc(
                "syncguard_observe",
                timeout=_TIMEOUT_S,
                args=(request, self._world, name, to_bytes(arguments)),
            )
        except Exception as error:
            raise Unsupported(f"{name}: a rank does not answer: {error}") from error
        return checked(replies, request, self._world, name)
