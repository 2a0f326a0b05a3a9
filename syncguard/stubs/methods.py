"""How the stub engine treats a layer's weights: left as they are, or rounded to MXFP8 at load."""

from typing import Any

import torch

from syncguard.grids import quantize
from syncguard.stubs.kernels import PlainKernel

__all__ = ["Mxfp8OnlineMethod", "Mxfp8SerializedMethod", "UnquantizedMethod"]


class UnquantizedMethod:
    """Keeps weights in the dtype in which they are loaded.

    Args:
        kernel: That computes with them.
    """

    grid = "bf16"
    serialized = False

    def __init__(self, kernel: PlainKernel) -> None:
        self.kernel = kernel

    def process_weights_after_loading(self, layer: Any) -> None:
        """Let the kernel take freshly loaded weights."""
        self.kernel.process_weights_after_loading(layer)


class Mxfp8OnlineMethod(UnquantizedMethod):
    """Loads weights in the model's dtype and rounds them to MXFP8 when a layer is complete."""

    grid = "mxfp8"

    def quantize(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Elements and scales of a weight, or of stacked ones."""
        return quantize(weight)

    def process_weights_after_loading(self, layer: Any) -> None:
        """Round freshly loaded weights, then let the kernel take them."""
        for matrix in layer.matrices:
            loaded = getattr(layer, matrix).data
            if loaded.dtype != torch.float8_e4m3fn:
                elements, scales = self.quantize(loaded)
                layer.rebind(matrix, elements)
                layer.rebind(f"{matrix}_scale", scales)
        super().process_weights_after_loading(layer)


class Mxfp8SerializedMethod(UnquantizedMethod):
    """Loads elements and scales that the learner's side has rounded."""

    grid = "mxfp8"
    serialized = True
