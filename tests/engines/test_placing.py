"""Ranks of one layer hold rectangles that are next to each other and cover each weight."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from syncguard.engines.held import Held
from syncguard.engines.placing import Cut, placed
from syncguard.observations import Place


class ColumnParallelLinear(SimpleNamespace):
    pass


class QKVParallelLinear(ColumnParallelLinear):
    pass


class RowParallelLinear(SimpleNamespace):
    pass


LAYERS = SimpleNamespace(
    ColumnParallelLinear=ColumnParallelLinear,
    RowParallelLinear=RowParallelLinear,
    QKVParallelLinear=QKVParallelLinear,
)


@dataclass
class Case:
    """One module on a rank, its parts, and where they must be."""

    module: Any
    parts: list[tuple[str, slice, str]]
    wanted: list[Place | None]
    ranks: int = 2
    rank: int = 1
    extra: dict[str, Any] = field(default_factory=dict)


def stacked(rows: int, columns: int) -> SimpleNamespace:
    return SimpleNamespace(
        _parameters={
            "w13_weight": torch.empty(2, 2 * rows, columns),
            "w2_weight": torch.empty(2, columns, rows),
        }
    )


CASES = {
    "column": Case(
        ColumnParallelLinear(input_size=8, output_size=12),
        [("weight", slice(0, None), "linear"), ("bias", slice(0, None), "linear")],
        [Place((6, 12), (0, 8), (12, 8)), Place((0, 1), (6, 12), (12,))],
    ),
    "merged": Case(
        ColumnParallelLinear(input_size=8, output_size=12),
        [("weight", slice(0, 4), "linear"), ("weight", slice(4, 6), "linear")],
        [Place((4, 8), (0, 8), (8, 8)), Place((2, 4), (0, 8), (4, 8))],
    ),
    "fewer keys than ranks": Case(
        QKVParallelLinear(input_size=8, output_size=12, num_kv_head_replicas=2),
        [("weight", slice(0, 4), "linear"), ("weight", slice(4, 6), "linear")],
        [Place((12, 16), (0, 8), (16, 8)), Place((2, 4), (0, 8), (4, 8))],
        ranks=4,
        rank=3,
    ),
    "row": Case(
        RowParallelLinear(output_size=6, input_size_per_partition=4),
        [("weight", slice(0, None), "linear"), ("bias", slice(0, None), "linear")],
        [Place((0, 6), (4, 8), (6, 8)), None],
    ),
    "vocabulary": Case(
        SimpleNamespace(
            tp_size=2,
            org_vocab_size=5,
            embedding_dim=8,
            shard_indices=SimpleNamespace(org_vocab_start_index=3, org_vocab_end_index=5),
        ),
        [("weight", slice(0, 5), "embedding")],
        [Place((3, 5), (0, 8), (5, 8))],
    ),
    "experts": Case(
        stacked(4, 8),
        [("w13_weight", slice(4, 8), "expert"), ("w2_weight", slice(0, 8), "expert")],
        [Place((4, 8), (0, 8), (8, 8)), Place((0, 8), (4, 8), (8, 8))],
    ),
    "alone": Case(
        ColumnParallelLinear(input_size=8, output_size=12),
        [("weight", slice(0, None), "linear")],
        [None],
        ranks=1,
        rank=0,
    ),
    "replicated": Case(SimpleNamespace(), [("weight", slice(0, 3), "linear")], [None]),
    "plain": Case(SimpleNamespace(), [("weight", slice(0, 3), "plain")], [None]),
}


def held(case: Case) -> Iterator[Held]:
    for number, (parameter, rows, kind) in enumerate(case.parts):
        expert = 0 if kind == "expert" else -1
        yield Held(f"w{number}", case.module, "path", parameter, rows, kind, expert)


@pytest.mark.parametrize("name", CASES)
def test_a_rank_tells_its_rectangle(name: str) -> None:
    case = CASES[name]
    cut = Cut(LAYERS, lambda _: (case.rank, case.ranks), lambda _: (case.rank, case.ranks))
    assert [one.place for one in placed(held(case), cut)] == case.wanted


def test_padding_of_a_vocabulary_is_no_part_of_the_weight() -> None:
    case = CASES["vocabulary"]
    cut = Cut(LAYERS, lambda _: (1, 2), lambda _: (1, 2))
    (one,) = placed(held(case), cut)
    assert one.rows == slice(0, 2)
