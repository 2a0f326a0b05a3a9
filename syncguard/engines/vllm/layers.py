"""Which of the learner's weights each live vLLM module holds, and in what grid."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.engines.vllm.kernel import kernel_of
from syncguard.observations import EngineLayer

__all__ = ["Held", "held_weights", "layer_table"]

_PLAIN: Final = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
_DTYPE_GRIDS: Final = MappingProxyType(
    {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
)


@dataclass(frozen=True, slots=True)
class Held:
    """One of the learner's weights inside a live module.

    Attributes:
        weight: The learner's name.
        module: The live module.
        path: Its path in the model.
        parameter: Name of the parameter that holds it, ``weight`` or ``bias`` and the like.
        rows: Its rows in that parameter.
        kind: ``linear``, ``embedding``, ``head`` or ``plain``.
    """

    weight: str
    module: Any
    path: str
    parameter: str
    rows: slice
    kind: str


def held_weights(model: Any) -> Iterator[Held]:
    """Every weight of the learner that the model holds, fused parameters taken apart.

    Scales are no weights of their own: they belong to the weight that they scale.
    """
    fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    for path, module in model.named_modules():
        kind = _kind(module)
        for parameter in sorted(module._parameters):
            if module._parameters[parameter] is None or parameter.endswith("_scale"):
                continue
            for name, rows in _parts(module, path, fused):
                yield Held(f"{name}.{parameter}".lstrip("."), module, path, parameter, rows, kind)


def layer_table(model: Any, rank: int = 0) -> list[EngineLayer]:
    """The layer table: what the live quantization methods and kernels say."""
    groups: dict[str, list[Held]] = {}
    for held in held_weights(model):
        if held.kind != "plain" and held.parameter == "weight":
            groups.setdefault(held.path, []).append(held)
    table = []
    for path, parts in groups.items():
        module = parts[0].module
        kernel = kernel_of(module)
        dtype = _DTYPE_GRIDS.get(module.params_dtype, str(module.params_dtype))
        table.append(
            EngineLayer(
                module=path,
                parts=tuple(held.weight for held in parts),
                method=type(module.quant_method).__name__,
                kernel=type(kernel).__name__ if kernel is not None else "",
                grid=_grid(module, dtype),
                activations=getattr(kernel, "activations", dtype),
                rank=rank,
            )
        )
    return table


def _grid(module: Any, dtype: str) -> str:
    """What the live kernel computes with; a method may serve several grids."""
    from vllm.model_executor.kernels.linear.mxfp8.Mxfp8LinearKernel import Mxfp8LinearKernel

    if isinstance(kernel_of(module), Mxfp8LinearKernel):
        return "mxfp8"
    method = type(module.quant_method).__name__
    return dtype if method in _PLAIN else f"unknown to syncguard ({method})"


def _kind(module: Any) -> str:
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


def _parts(module: Any, path: str, fused: Mapping[str, list[str]]) -> Iterator[tuple[str, slice]]:
    parent, _, leaf = path.rpartition(".")
    sizes = getattr(module, "output_partition_sizes", None)
    names = fused.get(leaf)
    if names is None or sizes is None or len(names) != len(sizes):
        rows = getattr(module, "org_vocab_size", None)  # vLLM pads the vocabulary
        yield path, slice(0, rows)
        return
    start = 0
    for name, size in zip(names, sizes, strict=True):
        yield f"{parent}.{name}", slice(start, start + size)
        start += size
