"""Ranks of SGLang answer in files: nobody answers for another rank or another question."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from syncguard.engines import ranks
from syncguard.engines.carrying import to_bytes
from syncguard.engines.sglang.ranks import SchedulerRanks, answer_in
from syncguard.errors import Unsupported


class Rank:
    """Observes."""

    def __init__(self, number: int) -> None:
        self.number = number

    def layers(self, more: int = 0) -> str:
        return f"rank {self.number + more}"

    def poison(self) -> str:
        raise MemoryError("full")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def answering(*delays: float, late: int = 0) -> Callable[..., None]:
    """Two schedulers that answer after their delays; one that is late tells an earlier number."""

    def answer(rank: int, request: int, folder: str) -> None:
        time.sleep(delays[rank])
        answer_in(
            folder,
            rank,
            lambda name, given: ranks.reply(lambda: Rank(rank), request - late, rank, name, given),
        )

    def call(method: str, request: int, world: int, folder: str) -> None:
        assert (method, world) == ("syncguard_observe", 2)
        for rank in range(len(delays)):
            threading.Thread(target=answer, args=(rank, request, folder)).start()

    return call


def test_answers_come_in_the_order_of_ranks(loop: asyncio.AbstractEventLoop) -> None:
    asked = SchedulerRanks(answering(0.05, 0), loop, 2)
    assert asked.ask("layers") == ["rank 0", "rank 1"]
    assert asked.ask("layers", 5) == ["rank 5", "rank 6"]


@pytest.mark.parametrize(
    ("name", "call", "told"),
    [
        ("poison", answering(0, 0), "poison: rank 0: MemoryError: full"),
        ("nothing", answering(0, 0), "nothing: rank 0: AttributeError: .* has no attribute"),
        ("layers", answering(0), "layers: no answer from rank 1"),
        ("layers", answering(0, 5), "layers: no answer from rank 1"),
        ("layers", answering(0, 0, late=1), "rank 0 answered request 0, not 1"),
        ("layers", lambda *_, **__: None, "layers: no answer from rank 0, 1"),
    ],
)
def test_nobody_answers_for_another(
    name: str, call: Any, told: str, loop: asyncio.AbstractEventLoop
) -> None:
    with pytest.raises(Unsupported, match=told):
        SchedulerRanks(call, loop, 2, timeout_s=0.3).ask(name)


def test_a_late_answer_is_dropped(loop: asyncio.AbstractEventLoop) -> None:
    delays = [0.0, 0.5]
    asked = SchedulerRanks(
        lambda *args, **kw: answering(*delays)(*args, **kw), loop, 2, timeout_s=0.2
    )
    with pytest.raises(Unsupported, match="no answer from rank 1"):
        asked.ask("layers")
    delays[1] = 0.0
    assert asked.ask("layers", 2) == ["rank 2", "rank 3"]
    time.sleep(0.5)
    assert asked.ask("layers", 4) == ["rank 4", "rank 5"]


def test_the_loop_runs_meanwhile(loop: asyncio.AbstractEventLoop) -> None:
    """Else SGLang is not told that one of its processes has died."""
    ran: list[bool] = []
    loop.call_later(0.01, ran.append, True)
    SchedulerRanks(answering(0.1, 0), loop, 2).ask("layers")
    assert ran == [True]


def test_one_rank_here_is_simply_asked() -> None:
    local = ranks.LocalRank(Rank(3))
    assert local.ask("layers", 1) == ["rank 4"]
    with pytest.raises(MemoryError):
        local.ask("poison")


def test_a_reply_tells_its_request_and_its_error() -> None:
    given = to_bytes(())
    assert ranks.reply(lambda: Rank(1), 7, 1, "layers", given) == (7, 1, to_bytes("rank 1"), "")
    assert ranks.reply(lambda: Rank(1), 8, 1, "poison", given) == (8, 1, b"", "MemoryError: full")
