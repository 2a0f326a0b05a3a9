"""vLLM's side of the ledger: its default loader, and what its layer-wise reload still stages."""

from typing import Any

import torch

from syncguard.engines import ledger

__all__ = ["Ledger"]


class Ledger(ledger.Ledger):
    """Follows the loading of one vLLM model; its reload counts elements only."""

    def __init__(self, model: Any, rank: int = 0) -> None:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        super().__init__(model, default_weight_loader, rank=rank)

    def unfolded(self) -> list[str]:
        """See `syncguard.engines.ledger.Ledger`."""
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        def staged(module: torch.nn.Module) -> bool:
            info = get_layerwise_info(module)
            total = info.load_numel_total or 0
            return bool(info.can_load() and 0 < info.load_numel < total)

        return [path for path, module in self._model.named_modules() if staged(module)]
