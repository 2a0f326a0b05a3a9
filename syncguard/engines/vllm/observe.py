"""Observations of a live vLLM model that need to know vLLM."""

from collections.abc import Callable
from typing import Any

import torch

from syncguard.engines.held import Held, by_module
from syncguard.engines.reading import Reader
from syncguard.engines.vllm.kernel import kernel_of
from syncguard.engines.vllm.layers import grid_in, held_weights, is_packed
from syncguard.grids import canary
from syncguard.observations import QuantizedCanary
from syncguard.probes import served_weight

__all__ = ["derived_names", "handles", "quantize_canary", "reader"]

_Serve = Callable[[torch.Tensor], torch.Tensor]


def reader(model: Any) -> Reader:
    """Reads one live vLLM model."""
    return Reader(tuple(held_weights(model)), "_scale", _serve, _derived, grid_in)


def quantize_canary(model: Any) -> QuantizedCanary | None:
    """See `syncguard.protocols.Engine.quantize_canary`: the kernel of the first MXFP8 layer."""
    from vllm.model_executor.layers.quantization.online import mxfp8

    modules = (parts[0].module for parts in by_module(held_weights(model)).values())
    kernels = (getattr(module.quant_method, "kernel", None) for module in modules)
    kernel = next((kernel for kernel in kernels if kernel is not None), None)
    if kernel is None:
        return None
    weight = canary()
    elements, scales = mxfp8.mxfp8_e4m3_quantize(weight)
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(elements, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    kernel.process_weights_after_loading(layer)
    served = served_weight(
        lambda rows: kernel.apply_weights(layer, rows), tuple(weight.shape), weight.dtype
    )
    return QuantizedCanary(elements, scales, served)


def handles(model: Any) -> set[int]:
    """See `syncguard.engines.observer.Observer`: vLLM keeps the address of a packed matrix so.

    It does that so that no compiler inlines the number, which is looked up at each call.
    """
    kernels = (kernel_of(parts[0].module) for parts in by_module(held_weights(model)).values())
    handlers = (getattr(kernel, "dnnl_handler", None) for kernel in kernels)
    return {
        handler.handler_tensor.untyped_storage().data_ptr()
        for handler in handlers
        if handler is not None
    }


def derived_names(module: Any) -> tuple[str, ...]:
    """Names of the readable tensors that a layer's kernel derives."""
    return tuple(_derived(module))


def _serve(held: Held) -> _Serve:
    if held.kind == "expert":
        return _serve_expert(held)

    def serve(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = held.module.quant_method.apply(held.module, x, bias=None)
        return out

    return serve


def _serve_expert(held: Held) -> _Serve:
    """One of the two products of an expert; the activation between them has no weights."""
    from syncguard.engines.vllm.packed import packed_product

    module, kernel = held.module, kernel_of(held.module)
    if is_packed(module):
        width = module.moe_config.intermediate_size_per_partition_unpadded
        if module.w2_weight.shape[-1] != width:
            raise ValueError(
                f"it pads experts of width {width}, and the probe would see the padding"
            )
        return packed_product(kernel, module, held.parameter, held.expert)
    if not hasattr(kernel, "product"):
        name = type(kernel).__name__
        raise ValueError(f"{name} fuses both products of an expert and cannot be asked for one")

    def serve(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = kernel.product(module, held.parameter, held.expert, x)
        return out

    return serve


def _derived(module: Any) -> dict[str, torch.Tensor]:
    derive = getattr(kernel_of(module), "derive", None)
    fresh: dict[str, torch.Tensor] = derive(module) if derive is not None else {}
    return fresh
