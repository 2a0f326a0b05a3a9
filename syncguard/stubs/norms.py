"""A normalization layer whose kernel reads its weight through a second name."""

from collections.abc import Sequence

import torch

from syncguard.stubs.modules import Held, StubLayer
from syncguard.stubs.shards import Shard

__all__ = ["NormLayer"]


class NormLayer(StubLayer):
    """Root mean square normalization; ``kernel_weight`` shares the parameter's storage.

    Args:
        path: In the model.
        shards: The one shard that it holds.
    """

    def __init__(self, path: str, shards: Sequence[Shard]) -> None:
        rows = shards[0].rows
        super().__init__(path, "norm", [Held("weight", (rows.stop - rows.start,))], shards)
        self.bind_kernel()

    def bind_kernel(self) -> None:
        """Let the kernel read the parameter as it is now."""
        self.kernel_weight = self.get_parameter("weight").detach()

    def operands(self) -> dict[str, torch.Tensor]:
        """Every tensor that the layer's computation reads."""
        return {"weight": self.kernel_weight}
