"""An MXFP8 linear kernel for vLLM on a CPU that behaves like the native ones.

Like the kernels for Blackwell it rounds activations to MXFP8 too, and it reads its scales only
from a derived copy in the 128x4 layout, which is no parameter: whoever updates the parameters and
not this copy serves fresh elements under stale scales.
"""

from typing import Any

import torch
from vllm.model_executor.kernels.linear.mxfp8.Mxfp8LinearKernel import (
    Mxfp8LinearKernel,
    Mxfp8LinearLayerConfig,
)

from syncguard.grids import mxfp8_product, swizzle, unswizzle

__all__ = ["DERIVED_SCALES", "CpuMxfp8LinearKernel", "install", "kernel_of", "product"]

DERIVED_SCALES = "weight_scale_swizzled"
"""The layer's attribute that holds the derived scales."""

_BLOCK = 32


class CpuMxfp8LinearKernel(Mxfp8LinearKernel):  # type: ignore[misc]
    """W8A8 MXFP8 on a CPU: exact grids, float32 accumulation, output in the model's dtype."""

    activations = "mxfp8"

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Always: it is plain torch."""
        return True, None

    @classmethod
    def can_implement(cls, c: Mxfp8LinearLayerConfig) -> tuple[bool, str | None]:
        """Layers whose input features are whole blocks."""
        shape = getattr(c, "weight_shape", None)  # since 0.31; before, vLLM refuses the weight
        features = shape[1] if shape else 0
        if features % _BLOCK:
            return False, f"{features} input features are not a multiple of {_BLOCK}"
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Derive the swizzled scales."""
        for name, fresh in self.derive(layer).items():
            self.install(layer, name, fresh)

    def install(self, layer: Any, name: str, fresh: torch.Tensor) -> None:
        """Keep one derived tensor, see `install`."""
        install(layer, name, fresh)

    def derive(self, layer: Any) -> dict[str, torch.Tensor]:
        """What the derived tensors must hold, from the canonical ones; changes nothing."""
        return {DERIVED_SCALES: swizzle(layer.weight_scale.data)}

    def apply_weights(
        self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``x @ weight.T + bias`` with both operands on the MXFP8 grid.

        Args:
            layer: The vLLM layer.
            x: ``[..., K]`` in the model's dtype.
            bias: ``[N]`` or none.
        """
        rows = x.reshape(-1, x.shape[-1])
        swizzled = getattr(layer, DERIVED_SCALES)
        out: torch.Tensor = torch.ops.syncguard.mxfp8_linear(rows, layer.weight, swizzled)
        out = out.reshape(*x.shape[:-1], layer.weight.shape[0])
        return out if bias is None else out + bias


@torch.library.custom_op("syncguard::mxfp8_linear", mutates_args=())
def _mxfp8_linear(x: torch.Tensor, weight: torch.Tensor, swizzled: torch.Tensor) -> torch.Tensor:
    """The product as one operator, which a compiler takes as it is."""
    return product(x, weight, swizzled)


@_mxfp8_linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, swizzled: torch.Tensor) -> torch.Tensor:
    del swizzled
    return x.new_empty(x.shape[0], weight.shape[0])


def product(x: torch.Tensor, elements: torch.Tensor, swizzled: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T`` with both operands on the MXFP8 grid.

    Args:
        x: ``[rows, K]`` in the model's dtype.
        elements: float8_e4m3fn ``[N, K]``.
        swizzled: Their scales in the 128x4 layout.
    """
    rows, features = elements.shape
    return mxfp8_product(x, elements, unswizzle(swizzled, rows, features // _BLOCK))


def install(layer: Any, name: str, fresh: torch.Tensor) -> None:
    """Keep one derived tensor: in place where there is one, as captured graphs need it."""
    held = getattr(layer, name, None)
    if held is not None and held.shape == fresh.shape:
        held.copy_(fresh)
    else:
        setattr(layer, name, fresh)


def kernel_of(layer: Any) -> Any:
    """The kernel object of a vLLM layer's quantization method, or of its scheme, or none.

    That of experts is another one after each sync of a quantized layer.
    """
    modular = getattr(layer.quant_method, "moe_kernel", None)
    scheme = getattr(layer, "scheme", None)  # of compressed-tensors, whose one method has several
    owners = (layer.quant_method, "kernel"), (modular, "fused_experts"), (scheme, "kernel")
    return next((getattr(one, name) for one, name in owners if hasattr(one, name)), None)
