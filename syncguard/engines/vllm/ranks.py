"""Asks the ranks of a live vLLM: the one in this process, or one in each worker process."""

import itertools
from collections.abc import Sequence
from typing import Any, Final, Protocol

from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.engines.vllm.observer import Observer
from syncguard.errors import Unsupported

__all__ = ["LocalRank", "Ranks", "WorkerRanks"]

_TIMEOUT_S: Final = 120.0


class Ranks(Protocol):
    """All ranks of one engine."""

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of every rank's `Observer`; the answers in the order of ranks."""


class LocalRank:
    """The one rank that lives in this process.

    Args:
        worker: vLLM's worker.
    """

    def __init__(self, worker: Any) -> None:
        self._observer = Observer(worker)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `Ranks`."""
        return [getattr(self._observer, name)(*arguments)]


class WorkerRanks:
    """Ranks in worker processes.

    Args:
        llm: vLLM's engine.
        world: How many there are.
    """

    def __init__(self, llm: Any, world: int) -> None:
        self._llm = llm
        self._world = world
        self._requests = itertools.count(1)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `Ranks`.

        Raises:
            Unsupported: A rank fails, is silent, or answers another question.
        """
        request = next(self._requests)
        try:
            replies = self._llm.collective_rpc(
                "syncguard_observe",
                timeout=_TIMEOUT_S,
                args=(request, self._world, name, to_bytes(arguments)),
            )
        except Exception as error:
            raise Unsupported(f"{name}: a rank does not answer: {error}") from error
        return _checked(replies, request, self._world, name)


def _checked(replies: Sequence[Any], request: int, world: int, name: str) -> list[Any]:
    """The answers by rank; each must be there, once, and answer this request."""
    by_rank = {}
    for number, rank, answer, error in replies:
        if number != request:
            raise Unsupported(f"{name}: rank {rank} answered request {number}, not {request}")
        if error:
            raise Unsupported(f"{name}: rank {rank}: {error}")
        by_rank[rank] = from_bytes(answer)
    silent = [str(rank) for rank in range(world) if rank not in by_rank]
    if silent:
        raise Unsupported(f"{name}: no answer from rank {', '.join(silent)}")
    return [by_rank[rank] for rank in range(world)]
