"""Which of the learner's weights each live vLLM module holds, and in what grid."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from syncguard.engines import held
from syncguard.engines.held import Held, dtype_of, grid_of
from syncguard.engines.placing import Cut, placed
from syncguard.engines.vllm.kernel import kernel_of
from syncguard.observations import EngineLayer

__all__ = ["grid_in", "held_weights", "is_int8", "is_packed", "layer_table"]

_PLAIN: Final = (
    "UnquantizedEmbeddingMethod",
    "UnquantizedFusedMoEMethod",
    "UnquantizedLinearMethod",
)
_INT8: Final = "Int8ScaledMMLinearKernel"
"""By its name, so that versions whose modules lie elsewhere start all the same."""

_PACKED: Final = (
    "its kernel reads {parameter} in an order of its own, which this parameter may or may not be in"
)


def held_weights(model: Any) -> Iterator[Held]:
    """Every weight of the learner that the model holds, fused parameters taken apart.

    On a tensor-parallel rank each comes with the rectangle that it is.
    """
    from vllm.model_executor.layers import linear
    from vllm.model_executor.layers.fused_moe import RoutedExperts

    cut = Cut(linear, _group, _experts_group)
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for path, module in model.named_modules():
        if isinstance(module, RoutedExperts):
            found = _experts(path, module)
        else:
            found = held.held_weights([(path, module)], fused.get, _kind, _why_packed)
        yield from placed(found, cut)


def layer_table(model: Any, rank: int = 0) -> list[EngineLayer]:
    """The layer table: what the live quantization methods and kernels say."""
    return held.layer_table(held_weights(model), _describe, rank)


def is_packed(module: Any) -> bool:
    """Whether experts are served by vLLM's own kernel for a CPU, which packs them."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    return isinstance(kernel_of(module), CPUUnquantizedExperts)


def _group(module: Any) -> tuple[int, int]:
    return module.tp_rank, module.tp_size


def _experts_group(module: Any) -> tuple[int, int]:
    parallel = module.moe_config.moe_parallel_config
    return parallel.tp_rank, parallel.tp_size


def _experts(path: str, module: Any) -> Iterator[Held]:
    """The matrices of each expert, under the names of the model's checkpoints."""
    names = module.ckpt_gate_proj_name, module.ckpt_up_proj_name, module.ckpt_down_proj_name
    sealed = _PACKED if is_packed(module) else ""
    return held.held_experts(path, module, path.removesuffix(".routed_experts"), names, sealed)


def _describe(module: Any) -> tuple[str, str, str]:
    kernel = kernel_of(module)
    dtype = grid_of(dtype_of(module))
    name = type(kernel).__name__ if kernel is not None else ""
    rounded = "int8" if is_int8(kernel) else dtype
    return name, grid_in(module), getattr(kernel, "activations", rounded)


def grid_in(module: Any) -> str:
    """The grid of the weights that the live kernel of a module computes with."""
    return _grid(module, grid_of(dtype_of(module)))


def is_int8(kernel: Any) -> bool:
    """Whether a kernel takes INT8 by output channels and rounds each token to INT8 by itself."""
    if not any(base.__name__ == _INT8 for base in type(kernel).__mro__):
        return False
    config = kernel.config
    return config.is_channelwise and config.input_symmetric and not config.is_static_input_scheme


def _grid(module: Any, dtype: str) -> str:
    """What the live kernel computes with; a method may serve several grids."""
    from vllm.model_executor.kernels.linear.mxfp8.Mxfp8LinearKernel import Mxfp8LinearKernel

    from syncguard.engines.vllm.experts import CpuMxfp8Experts

    kernel = kernel_of(module)
    if isinstance(kernel, Mxfp8LinearKernel | CpuMxfp8Experts):
        return "mxfp8"
    if is_int8(kernel):
        return "int8"
    method = type(module.quant_method).__name__
    return dtype if method in _PLAIN else f"unknown to syncguard ({method})"


def _why_packed(module: Any) -> str:
    """Kernels for INT8 on a CPU pack the elements at load and drop them, or keep them so."""
    kernel = kernel_of(module) if hasattr(module, "quant_method") else None
    return (
        f"{type(kernel).__name__} keeps elements in an order of its own" if is_int8(kernel) else ""
    )


def _kind(path: str, module: Any) -> str:
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    table = (
        (ParallelLMHead, "head"),
        (VocabParallelEmbedding, "embedding"),
        (LinearBase, "linear"),
    )
    return next((kind for cls, kind in table if isinstance(module, cls)), "plain")
