"""Which part of each of the learner's weights goes where: fused parameters and ranks.

A shard is a rectangle of a weight. Ranks cut output rows of some weights and input columns of
others; a cut through columns lies at a multiple of a block. So the fingerprints of a weight's
rows are those of its row shards one after the other, and the sums of those of its column shards,
where each column shard's positions are counted from its first column in the whole row.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from syncguard.stubs.topology import BLOCK

__all__ = ["Shard", "cut", "expert_of"]

_EXPERT: Final = re.compile(r"(?P<moe>.*)\.experts\.(?P<expert>\d+)\.(?P<rest>.*)")


@dataclass(frozen=True, slots=True)
class Shard:
    """A rectangle of one of the learner's weights and its place in a parameter.

    Attributes:
        weight: The learner's name; for experts with the slot in place of the expert.
        parameter: Name in the layer.
        rows: Rows in the parameter, or in its slot.
        source_rows: Rows in the weight; elements of a vector.
        source_columns: Columns in the weight; none for a vector.
        shard: Which part of a fused parameter: ``q``, ``gate``, ``w1`` and so on, or empty.
        slot: Slot of stacked experts, or -1.
    """

    weight: str
    parameter: str
    rows: slice
    source_rows: slice
    source_columns: slice | None = None
    shard: str = ""
    slot: int = -1

    @property
    def numel(self) -> int:
        """Elements of the rectangle."""
        count = self.source_rows.stop - self.source_rows.start
        if self.source_columns is not None:
            count *= self.source_columns.stop - self.source_columns.start
        return int(count)

    def scales(self) -> "Shard":
        """The rectangle of the weight's scales."""
        assert self.source_columns is not None, "vectors have no scales"  # noqa: S101
        columns = slice(self.source_columns.start // BLOCK, self.source_columns.stop // BLOCK)
        return replace(
            self,
            weight=f"{self.weight}_scale",
            parameter=f"{self.parameter}_scale",
            source_columns=columns,
        )


def cut(total: int, parts: int, index: int, unit: int = 1) -> slice:
    """Part ``index`` of ``total``, cut at multiples of ``unit`` as evenly as they allow."""
    units = total // unit
    return slice(index * units // parts * unit, (index + 1) * units // parts * unit)


def expert_of(weight: str) -> tuple[str, int, str] | None:
    """Take the name of an expert's weight apart: the layer's name, the expert, the rest."""
    match = _EXPERT.fullmatch(weight)
    if match is None:
        return None
    return match["moe"], int(match["expert"]), match["rest"]
