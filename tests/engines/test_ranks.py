"""Every answer belongs to its rank and to its question."""

from typing import Any

import pytest
import torch

from syncguard.engines.carrying import from_bytes, to_bytes
from syncguard.engines.ranks import AllRanks
from syncguard.engines.vllm.ranks import WorkerRanks
from syncguard.errors import Unsupported
from syncguard.observations import ProbeTurn

A, B = to_bytes("a"), to_bytes("b")


class Workers:
    """Answers as it is told to."""

    def __init__(self, *replies: Any) -> None:
        self.replies = replies
        self.asked: list[Any] = []

    def collective_rpc(self, method: str, timeout: float, args: tuple[Any, ...]) -> list[Any]:
        self.asked.append((method, args))
        if isinstance(self.replies[0], Exception):
            raise self.replies[0]
        return [reply(args[0]) for reply in self.replies]


def test_answers_come_in_the_order_of_ranks() -> None:
    workers = Workers(lambda n: (n, 1, B, ""), lambda n: (n, 0, A, ""))
    ranks = WorkerRanks(workers, 2)
    assert ranks.ask("layers", 7) == ["a", "b"]
    assert ranks.ask("layers") == ["a", "b"]
    assert workers.asked[0] == ("syncguard_observe", (1, 0, 2, "layers", to_bytes((7,))))
    assert workers.asked[1][1][0] == 2


@pytest.mark.parametrize(
    ("replies", "told"),
    [
        ([lambda n: (n, 0, A, ""), lambda n: (n - 1, 1, B, "")], "rank 1 answered request 0"),
        ([lambda n: (n, 0, A, ""), lambda n: (n, 1, b"", "E: full")], "layers: rank 1: E: full"),
        ([lambda n: (n, 0, A, "")], "layers: no answer from rank 1"),
        ([lambda n: (n, 0, A, "")] * 2, "layers: no answer from rank 1"),
        ([TimeoutError("120 s")], "layers: a rank does not answer: 120 s"),
    ],
)
def test_nobody_answers_for_another(replies: list[Any], told: str) -> None:
    with pytest.raises(Unsupported, match=told):
        WorkerRanks(Workers(*replies), 2).ask("layers")


def test_ranks_of_replicas_are_numbered_on() -> None:
    first = Workers(lambda n: (n, 0, A, ""))
    second = Workers(lambda n: (n, 0, B, ""))
    ranks = AllRanks([WorkerRanks(first, 1, 0, 2), WorkerRanks(second, 1, 1, 2)])
    assert ranks.ask("layers") == ["a", "b"]
    assert [workers.asked[0][1][1:3] for workers in (first, second)] == [(0, 2), (1, 2)]
    second.replies = (lambda n: (n, 0, b"", "E: full"),)
    with pytest.raises(Unsupported, match="layers: rank 1: E: full"):
        ranks.ask("layers")


def test_values_survive_the_way() -> None:
    elements = torch.randn(2, 32).to(torch.float8_e4m3fn)
    value = {"a": ProbeTurn(sums=True, number=3), "b": elements}
    found = from_bytes(to_bytes(value))
    assert found["a"] == value["a"]
    assert torch.equal(found["b"].view(torch.uint8), elements.view(torch.uint8))
