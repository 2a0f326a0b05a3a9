"""Puts together what ranks observe of the rectangles of weights that they hold.

Row prints of row shards are put one after the other, those of column shards are added, with
positions counted from the first column of the whole row. Where several ranks hold the same
rectangle there are several copies of a weight: the first is reported under the weight's name, each
further one under ``<name>@rank<n>``, n the first rank that holds a part of it (and ``[slot]`` for
experts). `syncguard.observations.WeightPrint.weight` is the learner's name in all of them.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.fingerprint import row_prints
from syncguard.observations import Unreadable, WeightPrint
from syncguard.stubs.shards import Shard
from syncguard.stubs.topology import WeightSpec

__all__ = ["Merger"]

Prints = Mapping[str, NDArray[np.uint64]]


@dataclass(slots=True, eq=False)
class _Copy:
    where: str
    grid: str = ""
    rows: dict[str, NDArray[np.uint64]] = field(default_factory=dict)
    vector: torch.Tensor | None = None
    numel: int = 0
    nbytes: int = 0
    why: str = ""


class Merger:
    """Collects rectangles of weights.

    Args:
        specs: The learner's weights by name.
    """

    def __init__(self, specs: Mapping[str, WeightSpec]) -> None:
        self._specs = specs
        self._copies: dict[str, list[_Copy]] = defaultdict(list)
        self._seen: dict[tuple[str, int, int], int] = defaultdict(int)

    def add(self, name: str, rank: int, shard: Shard, rows: Prints, grid: str, nbytes: int) -> None:
        """Add the row prints of one rectangle of a matrix, by component."""
        copy = self._copy(name, rank, shard)
        copy.grid = copy.grid or grid
        if copy.grid != grid:
            copy.why = f"a part of it is in {copy.grid}, another in {grid}"
            return
        total = self._specs[name].shape[0]
        for component, prints in rows.items():
            held = copy.rows.setdefault(component, np.zeros(total, np.uint64))
            held[shard.source_rows] += prints
        copy.numel += shard.numel
        copy.nbytes += nbytes

    def add_vector(
        self, name: str, rank: int, shard: Shard, values: torch.Tensor, grid: str
    ) -> None:
        """Add a part of a vector, whose fingerprint is that of one row."""
        copy = self._copy(name, rank, shard)
        copy.grid = grid
        if copy.vector is None:
            copy.vector = values.new_zeros(self._specs[name].shape)
        copy.vector[shard.source_rows] = values
        copy.numel += shard.numel
        copy.nbytes += values.nbytes

    def add_unreadable(self, name: str, rank: int, shard: Shard, why: str) -> None:
        """Note that a rectangle cannot be read."""
        copy = self._copy(name, rank, shard)
        copy.why, copy.numel = why, copy.numel + shard.numel

    def result(self) -> dict[str, WeightPrint | Unreadable]:
        """One answer for each copy of each weight."""
        return {
            name if not index else f"{name}@{copy.where}": self._answer(name, copy)
            for name, copies in self._copies.items()
            for index, copy in enumerate(copies)
        }

    def _copy(self, name: str, rank: int, shard: Shard) -> _Copy:
        columns = shard.source_columns.start if shard.source_columns is not None else 0
        place = name, shard.source_rows.start, columns
        index, copies = self._seen[place], self._copies[name]
        self._seen[place] += 1
        if index == len(copies):
            copies.append(_Copy(f"rank{rank}" + (f"[{shard.slot}]" if shard.slot >= 0 else "")))
        return copies[index]

    def _answer(self, name: str, copy: _Copy) -> WeightPrint | Unreadable:
        spec = self._specs[name]
        total = int(np.prod(spec.shape))
        if not copy.why and copy.numel != total:
            copy.why = f"ranks hold {copy.numel} of its {total} elements"
        if copy.why:
            return Unreadable(name, copy.why)
        rows = copy.rows
        if copy.vector is not None:
            rows = {"values": row_prints(copy.vector)}
        return WeightPrint(name, copy.grid, spec.shape, rows, copy.nbytes)
