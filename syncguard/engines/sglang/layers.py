"""Which of the learner's weights each live SGLang module holds, and in what grid."""

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from syncguard.engines import held
from syncguard.engines.held import Held, dtype_of, grid_of
from syncguard.engines.placing import Cut, placed
from syncguard.engines.sglang import compat
from syncguard.engines.sglang.experts import is_experts
from syncguard.engines.sglang.standins import mm_mxfp8
from syncguard.observations import EngineLayer

__all__ = [
    "experts_kernel_of",
    "held_weights",
    "is_router",
    "kernel_of",
    "layer_table",
    "padding_of",
]

_PLAIN: Final = (
    "UnquantizedEmbeddingMethod",
    "UnquantizedFusedMoEMethod",
    "UnquantizedLinearMethod",
)

_ROUTER: Final = "gate"
"""What models call a router; some make it a module of their own."""

_SHUFFLED: Final = "its kernel reads the rows of {parameter} in an order of its own"

# SGLang's models keep this mapping inside `load_weights`, where it cannot be read.
_FUSED: Final = MappingProxyType(
    {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
)


def held_weights(model: Any) -> Iterator[Held]:
    """Every weight of the learner that the model holds, fused parameters taken apart.

    A tied head is the embedding's module under another path, and is given for both. On a
    tensor-parallel rank each comes with the rectangle that it is.
    """
    from sglang.srt.layers import linear

    cut = Cut(linear, compat.group_of, _experts_group)
    for path, module in model.named_modules(remove_duplicate=False):
        found = _experts(path, module) if is_experts(module) else _dense(path, module)
        yield from placed(found, cut)


def _experts_group(module: Any) -> tuple[int, int]:
    return module.moe_tp_rank, module.moe_tp_size


def _experts(path: str, module: Any) -> Iterator[Held]:
    shuffled = experts_kernel_of(module) is not None
    sealed = _SHUFFLED if shuffled else ""
    return held.held_experts(path, module, path, sealed=sealed, up_first=shuffled)


def _dense(path: str, module: Any) -> Iterator[Held]:
    for one in held.held_weights([(path, module)], _FUSED.get, _kind):
        kernel = kernel_of(one.module)
        shuffled = kernel is not None and kernel.is_flashinfer_trtllm()
        sealed = _SHUFFLED.format(parameter=one.parameter)
        yield replace(one, sealed=sealed) if shuffled and one.parameter == "weight" else one


def layer_table(model: Any, rank: int = 0) -> list[EngineLayer]:
    """The layer table: what the live quantization methods and kernels say."""
    return held.layer_table(held_weights(model), _describe, rank)


def kernel_of(module: Any) -> Any:
    """Which MXFP8 kernel SGLang chose for a dense layer, or none."""
    method: Any = getattr(module, "quant_method", None)
    quantized = getattr(method, "use_mxfp8", False) and not is_experts(module)
    return method.mxfp8_dense_backend if quantized else None


def experts_kernel_of(module: Any) -> Any:
    """Which MXFP8 kernel SGLang chose for stacked experts, or none."""
    method: Any = getattr(module, "quant_method", None)
    quantized = getattr(method, "use_mxfp8", False) and is_experts(module)
    return module.runner_backend if quantized else None


def padding_of(model: Any, module: Any) -> str:
    """What SGLang pads stacked experts from and to, for its kernel; empty if it does not."""
    config = model.config
    width = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    width //= module.moe_tp_size
    held = module.w2_weight.shape[-1]
    return f"{width} to {held}" if width != held else ""


def _describe(module: Any) -> tuple[str, str, str]:
    from sglang.srt.layers.quantization import fp8_utils

    kernel = kernel_of(module) or experts_kernel_of(module)
    dtype = grid_of(dtype_of(module))
    if kernel is not None:
        standin = getattr(fp8_utils, "flashinfer_mm_mxfp8", None) is mm_mxfp8
        return f"{kernel.value}{' (stand-in)' if standin else ''}", "mxfp8", "mxfp8"
    if is_router(module):
        return "", dtype, dtype
    method = type(module.quant_method).__name__
    return "", dtype if method in _PLAIN else f"unknown to syncguard ({method})", dtype


def _kind(path: str, module: Any) -> str:
    from sglang.srt.layers.linear import LinearBase
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    if isinstance(module, VocabParallelEmbedding):
        return "head" if path.rpartition(".")[2] == "lm_head" else "embedding"
    router = path.rpartition(".")[2] == _ROUTER and is_router(module)
    return "linear" if router or isinstance(module, LinearBase) else "plain"


def is_router(module: Any) -> bool:
    """Whether a module multiplies with a matrix of its own, with none of SGLang's methods."""
    weight = module._parameters.get("weight")
    return not hasattr(module, "quant_method") and weight is not None and weight.ndim > 1
