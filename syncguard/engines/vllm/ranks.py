"""Asks the ranks of a live vLLM: the one in this process, or one in each worker process."""

import itertools
from collections.abc import Sequence
from typing import Any, Final, Protocol

from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.errors import Unsupported

__all__ = ["AllRanks", "LocalRank", "Ranks", "Reply", "WorkerRanks", "answers_of"]

_TIMEOUT_S: Final = 120.0

Reply = tuple[int, int, bytes, str]
"""Number of the request, rank in its replica, answer, and what went wrong or an empty text."""


class Ranks(Protocol):
    """All ranks of one replica."""

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of every rank's `Observer`; the answers in the order of ranks."""


class AllRanks:
    """The ranks of all replicas, in order.

    Args:
        replicas: The ranks of each.
    """

    def __init__(self, replicas: Sequence[Ranks]) -> None:
        self._replicas = replicas

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `Ranks`."""
        return [answer for ranks in self._replicas for answer in ranks.ask(name, *arguments)]


class LocalRank:
    """The one rank of a replica that lives in this process.

    Args:
        worker: vLLM's worker.
        first: Number of the rank among those of all replicas.
        world: How many ranks all replicas have.
    """

    def __init__(self, worker: Any, first: int = 0, world: int = 1) -> None:
        from syncguard.engines.vllm.observer import Observer  # and with it vLLM

        self._observer = Observer(worker, world, first)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `Ranks`."""
        return [getattr(self._observer, name)(*arguments)]


class WorkerRanks:
    """Ranks in worker processes.

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
        """See `Ranks`.

        Raises:
            Unsupported: A rank fails, is silent, or answers another question.
        """
        request = next(self._requests)
        try:
            replies = self._llm.collective_rpc(
                "syncguard_observe",
                timeout=_TIMEOUT_S,
                args=(request, self._first, self._world, name, to_bytes(arguments)),
            )
        except Exception as error:
            raise Unsupported(f"{name}: a rank does not answer: {error}") from error
        return answers_of(replies, request, self._count, name, self._first)


def answers_of(
    replies: Sequence[Reply], request: int, count: int, name: str, first: int = 0
) -> list[Any]:
    """The answers by rank; each must be there, once, and answer this request.

    Args:
        replies: What came back.
        request: Number of the request.
        count: How many ranks were asked.
        name: What they were asked for.
        first: Number of the first rank among those of all replicas, for the errors.

    Raises:
        Unsupported: A rank fails, is silent, or answers another question.
    """
    by_rank = {}
    for number, rank, answer, error in replies:
        if number != request:
            raise Unsupported(
                f"{name}: rank {first + rank} answered request {number}, not {request}"
            )
        if error:
            raise Unsupported(f"{name}: rank {first + rank}: {error}")
        by_rank[rank] = from_bytes(answer)
    silent = [str(first + rank) for rank in range(count) if rank not in by_rank]
    if silent:
        raise Unsupported(f"{name}: no answer from rank {', '.join(silent)}")
    return [by_rank[rank] for rank in range(count)]
