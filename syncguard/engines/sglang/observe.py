"""Observations of a live SGLang model that need to know SGLang."""

from collections.abc import Callable
from typing import Any, Final

import torch

from syncguard.engines.held import Held
from syncguard.engines.reading import Reader
from syncguard.engines.sglang.experts import expert_product
from syncguard.engines.sglang.layers import held_weights, is_router, kernel_of, padding_of
from syncguard.engines.sglang.standins import shuffle_matrix_sf_a
from syncguard.grids import canary, swizzle
from syncguard.observations import QuantizedCanary
from syncguard.probes import served_weight

__all__ = ["derived_names", "quantize_canary", "reader"]

_SHUFFLED: Final = "weight_scale_inv_shuffled"
_SWIZZLED: Final = "weight_scale_inv_swizzled"
_BLOCK: Final = 32
_TILE: Final = 128


def reader(model: Any) -> Reader:
    """Reads one live SGLang model."""
    return Reader(
        tuple(held_weights(model)), "_scale_inv", lambda held: _serve(model, held), _derived
    )


def quantize_canary(model: Any) -> QuantizedCanary:
    """See `syncguard.protocols.Engine.quantize_canary`: the method of the first MXFP8 layer."""
    weight = canary()
    held = next(held for held in held_weights(model) if kernel_of(held.module) is not None)
    method = held.module.quant_method
    layer: Any = torch.nn.Module()
    layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    method._quantize_mxfp8_weights(layer)
    served = served_weight(
        lambda rows: method.apply(layer, rows), tuple(weight.shape), weight.dtype
    )
    return QuantizedCanary(layer.weight.data, layer.weight_scale_inv.data, served)


def derived_names(module: Any) -> tuple[str, ...]:
    """Names of the readable tensors that a layer's method derives for its kernel."""
    return tuple(_derived(module))


def _serve(model: Any, held: Held) -> Callable[[torch.Tensor], torch.Tensor]:
    """A head is served by the logits processor, whatever its method says."""
    if held.kind == "expert":
        if widths := padding_of(model, held.module):
            raise ValueError(f"it pads experts from {widths}, and the probe would see the padding")
        return expert_product(held.module, held.parameter, held.expert)

    if is_router(held.module):
        return lambda x: held.module(x).detach()

    def serve(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = (
            model.logits_processor._compute_lm_head(x, held.module)
            if held.kind == "head"
            else held.module.quant_method.apply(held.module, x, bias=None)
        )
        return out

    return serve


def _derived(module: Any) -> dict[str, torch.Tensor]:
    kernel = kernel_of(module)
    if kernel is None:
        return {}
    scales = module.weight_scale_inv.data
    if kernel.is_flashinfer_trtllm():
        padded = torch.nn.functional.pad(scales, (0, 0, 0, -len(scales) % _TILE))
        flat = shuffle_matrix_sf_a(padded, _TILE, num_elts_per_sf=_BLOCK)
        return {_SHUFFLED: flat.reshape_as(padded)}
    layouts = kernel.is_flashinfer_cutlass() or kernel.is_flashinfer_cutedsl()
    return {_SWIZZLED: swizzle(scales)} if layouts else {}
