"""Which of the learner's weights each live vLLM module holds, and in what grid."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from syncguard.engines import held
from syncguard.engines.held import Held, dtype_of, grid_of
from syncguard.engines.vllm.kernel import kernel_of
from syncguard.observations import EngineLayer

__all__ = ["held_weights", "layer_table"]

_PLAIN: Final = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")


def held_weights(model: Any) -> Iterator[Held]:
    """Every weight of the learner that the model holds, fused parameters taken apart."""
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    return held.held_weights(model.named_modules(), fused.get, _kind)


def layer_table(model: Any, rank: int = 0) -> list[EngineLayer]:
    """The layer table: what the live quantization methods and kernels say."""
    return held.layer_table(held_weights(model), _describe, rank)


def _describe(module: Any) -> tuple[str, str, str]:
    kernel = kernel_of(module)
    dtype = grid_of(dtype_of(module))
    name = type(kernel).__name__ if kernel is not None else ""
    return name, _grid(module, dtype), getattr(kernel, "activations", dtype)


def _grid(module: Any, dtype: str) -> str:
    """What the live kernel computes with; a method may serve several grids."""
    from vllm.model_executor.kernels.linear.mxfp8.Mxfp8LinearKernel import Mxfp8LinearKernel

    if isinstance(kernel_of(module), Mxfp8LinearKernel):
        return "mxfp8"
    method = type(module.quant_method).__name__
    return dtype if method in _PLAIN else f"unknown to syncguard ({method})"


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
