"""Which rectangle of each of the learner's weights a tensor-parallel rank of vLLM holds."""

from dataclasses import replace

from syncguard.engines.held import Held
from syncguard.observations import Place

__all__ = ["placed"]


def placed(held: Held, index: int) -> Held:
    """Add the rectangle of the weight that a module holds, if it does not hold all of it.

    Args:
        held: The weight.
        index: Which part of a fused module it is, from 0.
    """
    if held.kind == "expert":
        return _expert(held)
    if held.kind in ("embedding", "head"):
        return _vocabulary(held)
    return _linear(held, index) if held.kind == "linear" else held


def _expert(held: Held) -> Held:
    parallel = held.module.moe_config.moe_parallel_config
    ranks, rank = parallel.tp_size, parallel.tp_rank
    if ranks == 1:
        return held
    rows, columns = held.rows.stop - held.rows.start, held.module.w13_weight.shape[-1]
    if held.parameter == "w13_weight":
        return _rows(held, rank * rows, ranks * rows, columns)
    return _columns(held, rank, ranks, rows, held.module.w2_weight.shape[-1])


def _vocabulary(held: Held) -> Held:
    module = held.module
    if module.tp_size == 1 or held.parameter != "weight":
        return held
    first = module.shard_indices.org_vocab_start_index
    count = module.shard_indices.org_vocab_end_index - first
    own = replace(held, rows=slice(0, count))
    return _rows(own, first, module.org_vocab_size, module.embedding_dim)


def _linear(held: Held, index: int) -> Held:
    from vllm.model_executor.layers import linear

    module = held.module
    cut = (linear.ColumnParallelLinear, linear.RowParallelLinear)
    if not isinstance(module, cut) or module.tp_size == 1:
        return held
    ranks, rank = module.tp_size, module.tp_rank
    if isinstance(module, linear.RowParallelLinear):
        if held.parameter != "weight":
            return held  # its bias is added once, to the sum
        return _columns(held, rank, ranks, module.output_size, module.input_size_per_partition)
    count = (held.rows.stop or module.output_size // ranks) - held.rows.start
    own = replace(held, rows=slice(held.rows.start, held.rows.start + count))
    if isinstance(module, linear.QKVParallelLinear) and index > 0:
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
