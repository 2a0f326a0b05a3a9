"""Puts together what ranks observe of the rectangles of weights that they hold.

Row prints of row shards are put one after the other, those of column shards are added, with
positions counted from the first column of the whole row. Where several ranks hold the same
rectangle there are several copies of a weight: the first is reported under the weight's name, each
further one under ``<name>@rank<n>``, n the first rank that holds a part of it.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from syncguard.observations import GraphReads, Place, ShardPrint, Unreadable, WeightPrint

__all__ = ["Answer", "Places", "merge_prints", "merge_rows", "merged_reads"]

Answer = WeightPrint | Unreadable
Places = Mapping[str, Place]
"""Weight to the rectangle that a rank holds; what is not in it the rank holds whole."""


def merge_prints(
    answers: Sequence[Mapping[str, Answer]], places: Sequence[Places]
) -> dict[str, Answer]:
    """One answer for each copy of each weight.

    Args:
        answers: For each rank its own answers, by weight.
        places: For each rank where its rectangles are.
    """
    if len(answers) == 1:
        return dict(answers[0])
    merged: dict[str, Answer] = {}
    for name in dict.fromkeys(name for answer in answers for name in answer):
        held = [(rank, answer[name]) for rank, answer in enumerate(answers) if name in answer]
        for index, copy in enumerate(_copies(name, held, places)):
            key = name if not index else f"{name}@rank{copy[0][0]}"
            merged[key] = _joined(name, copy, places)
    return merged


def merge_rows(
    answers: Sequence[Mapping[str, torch.Tensor]],
    held: Sequence[Place | None],
    rows: Sequence[int],
) -> dict[str, torch.Tensor]:
    """Rows of a weight from what ranks hold of it.

    Args:
        answers: For each rank its parts of those of the rows that it holds, in order.
        held: For each rank its rectangle; none for all of the weight.
        rows: Numbers of the rows in the weight.
    """
    whole: dict[str, torch.Tensor] = {}
    for answer, place in zip(answers, held, strict=True):
        for name, tensor in answer.items():
            if place is None or len(place.shape) < 2:
                whole.setdefault(name, tensor)
                continue
            width = (place.columns[1] - place.columns[0]) // tensor.shape[-1]
            if name not in whole:
                whole[name] = tensor.new_zeros(len(rows), place.shape[-1] // width)
            mine = [i for i, row in enumerate(rows) if place.rows[0] <= row < place.rows[1]]
            first, last = (column // width for column in place.columns)
            for at, row in zip(mine, tensor, strict=True):
                whole[name][at, first:last] = row
    return whole


def merged_reads(answers: Sequence[GraphReads]) -> GraphReads:
    """What the forwards of all ranks read."""
    paths = frozenset().union(*(one.paths for one in answers))
    return GraphReads(paths, captured=any(one.captured for one in answers))


def _copies(
    name: str, held: Sequence[tuple[int, Answer]], places: Sequence[Places]
) -> list[list[tuple[int, Answer]]]:
    """The n-th rank that holds a rectangle holds a part of the n-th copy."""
    seen: dict[Place | None, int] = defaultdict(int)
    copies: list[list[tuple[int, Answer]]] = []
    for rank, answer in held:
        place = places[rank].get(name)
        index = seen[place]
        seen[place] += 1
        if index == len(copies):
            copies.append([])
        copies[index].append((rank, answer))
    return copies


def _joined(name: str, copy: Sequence[tuple[int, Answer]], places: Sequence[Places]) -> Answer:
    shards: list[ShardPrint] = []
    grids, nbytes, total = set(), 0, 0
    shape: tuple[int, ...] = ()
    for rank, answer in copy:
        if not isinstance(answer, WeightPrint):
            return Unreadable(name, f"rank {rank}: {answer.why}")
        place = places[rank].get(name) or _whole(answer.shape)
        shape = place.shape
        shards.append(ShardPrint(rank, place, answer.rows))
        grids.add(answer.grid)
        nbytes += answer.nbytes
        total += place.numel
    if len(grids) > 1:
        return Unreadable(name, f"a part of it is in {', another in '.join(sorted(grids))}")
    if total != math.prod(shape):
        return Unreadable(name, f"ranks hold {total} of its {math.prod(shape)} elements")
    count = shape[0] if len(shape) > 1 else 1
    rows = {part: np.zeros(count, np.uint64) for part in shards[0].rows}
    for shard in shards:
        for part, prints in shard.rows.items():
            rows[part][slice(*shard.place.rows)] += prints
    return WeightPrint(name, grids.pop(), shape, rows, nbytes, tuple(shards))


def _whole(shape: tuple[int, ...]) -> Place:
    rows = shape[0] if len(shape) > 1 else 1
    return Place((0, rows), (0, shape[-1] if shape else 1), shape)
