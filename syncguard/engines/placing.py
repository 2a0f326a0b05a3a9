"""Which rectangle of each of the learner's weights a tensor-parallel rank holds.

vLLM and SGLang cut layers alike and name them alike, as one began with the code of the other; how
a module tells its rank differs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from syncguard.engines.held import EXPERT_MATRICES, Held
from syncguard.observations import Place

__all__ = ["Cut", "placed"]

Group = Callable[[Any], tuple[int, int]]
"""Gives the rank of a module among those that share it, and how many they are."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How an engine cuts its layers.

    Attributes:
        layers: Its module of linear layers, with ``ColumnParallelLinear``, ``RowParallelLinear``
            and ``QKVParallelLinear``.
        linear: The ranks of a linear layer.
        experts: The ranks of stacked experts.
    """

    layers: Any
    linear: Group
    experts: Group


def placed(found: Iterable[Held], cut: Cut) -> Iterator[Held]:
    """Add to each weight of a module its rectangle, if the module does not hold all of it.

    Args:
        found: The weights that one module holds, in the order of its rows.
        cut: How the engine cuts its layers.
    """
    seen: Counter[str] = Counter()
    for one in found:
        yield _placed(one, seen[one.parameter], cut)
        seen[one.parameter] += 1


def _placed(held: Held, index: int, cut: Cut) -> Held:
    if held.kind == "expert":
        return _expert(held, *cut.experts(held.module))
    if held.kind in ("embedding", "head"):
        return _vocabulary(held)
    return _linear(held, index, cut) if held.kind == "linear" else held


def _expert(held: Held, rank: int, ranks: int) -> Held:
    if ranks == 1:
        return held
    rows = held.rows.stop - held.rows.start
    columns = held.module._parameters[held.parameter].shape[-1]
    if held.parameter == EXPERT_MATRICES[0]:
        return _rows(held, rank * rows, ranks * rows, columns)
    return _columns(held, rank, ranks, rows, columns)


def _vocabulary(held: Held) -> Held:
    module = held.module
    if module.tp_size == 1 or held.parameter != "weight":
        return held
    first = module.shard_indices.org_vocab_start_index
    count = module.shard_indices.org_vocab_end_index - first
    own = replace(held, rows=slice(0, count))
    return _rows(own, first, module.org_vocab_size, module.embedding_dim)


def _linear(held: Held, index: int, cut: Cut) -> Held:
    module, layers = held.module, cut.layers
    if not isinstance(module, layers.ColumnParallelLinear | layers.RowParallelLinear):
        return held
    rank, ranks = cut.linear(module)
    if ranks == 1:
        return held
    if isinstance(module, layers.RowParallelLinear):
        if held.parameter != "weight":
            return held  # its bias is added once, to the sum
        return _columns(held, rank, ranks, module.output_size, module.input_size_per_partition)
    count = (held.rows.stop or module.output_size // ranks) - held.rows.start
    own = replace(held, rows=slice(held.rows.start, held.rows.start + count))
    if isinstance(module, layers.QKVParallelLinear) and index > 0:
        rank, ranks = rank // module.num_kv_head_replicas, ranks // module.num_kv_head_replicas
    features = module.input_size if held.parameter == "weight" else 0
    return _rows(own, rank * count, ranks * count, features)


def _rows(held: Held, first: int, total: int, columns: int) -> Held:
    """Rows of a matrix; elements of a vector if it has no columns."""
    count = held.rows.stop - held.rows.start
    here = (first, first + count)
    if not columns:
        return replace(held, place=Place((0, 1), here, (total,)))
    return replace(held, place=Place(here, (0, columns), (total, columns)))


def _columns(held: Held, rank: int, ranks: int, rows: int, columns: int) -> Held:
    here = (rank * columns, (rank + 1) * columns)
    return replace(held, place=Place((0, rows), here, (rows, ranks * columns)))
