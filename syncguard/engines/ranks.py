"""Asks the ranks of an engine, wherever they are: each answer belongs to its rank and question."""

from collections.abc import Sequence
from typing import Any, Protocol

from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.errors import Unsupported

__all__ = ["AllRanks", "LocalRank", "Ranks", "Reply", "checked", "reply"]

Reply = tuple[int, int, bytes, str]
"""A request's number, the rank in its replica, its answer as bytes, and what went wrong, or an
empty text."""


class Ranks(Protocol):
    """All ranks of one engine."""

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of every rank's `syncguard.engines.observer.Observer`.

        Returns:
            The answers in the order of ranks.

        Raises:
            Unsupported: A rank in another process fails, is silent, or answers another question.
        """


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
    """The one rank that lives in this process.

    Args:
        observer: Its observer.
    """

    def __init__(self, observer: Any) -> None:
        self._observer = observer

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        """See `Ranks`; what the observer raises is raised."""
        return [getattr(self._observer, name)(*arguments)]


def reply(observer: Any, request: int, rank: int, name: str, arguments: bytes) -> Reply:
    """What a rank in a process of its own answers.

    Args:
        observer: Gives the rank's observer.
        request: Number of the request, which comes back: an answer that is late must not be taken
            for that of another question.
        rank: The rank.
        name: A method of the observer.
        arguments: Its arguments, see `syncguard.engines.carrying`.
    """
    try:
        answer = getattr(observer(), name)(*from_bytes(arguments))
        return request, rank, to_bytes(answer), ""
    except Exception as error:  # noqa: BLE001 - the other side tells it
        return request, rank, b"", f"{type(error).__name__}: {error}"


def checked(
    replies: Sequence[Reply], request: int, count: int, name: str, first: int = 0
) -> list[Any]:
    """The answers by rank; each must be there, and answer this request.

    Args:
        replies: As they came.
        request: Number of the request.
        count: How many ranks were asked.
        name: What they were asked for.
        first: Number of the first rank among those of all replicas, for the errors.

    Raises:
        Unsupported: One is missing, tells an error, or answers another request.
    """
    by_rank = {}
    for number, rank, answer, error in replies:
        told = f"{name}: rank {first + rank}"
        if number != request:
            raise Unsupported(f"{told} answered request {number}, not {request}")
        if error:
            raise Unsupported(f"{told}: {error}")
        by_rank[rank] = from_bytes(answer)
    silent = [str(first + rank) for rank in range(count) if rank not in by_rank]
    if silent:
        raise Unsupported(f"{name}: no answer from rank {', '.join(silent)}")
    return [by_rank[rank] for rank in range(count)]
