"""SGLang's side of the ledger: its default loader and its names."""

from typing import Any

from syncguard.engines import ledger
from syncguard.engines.sglang.names import wire_name

__all__ = ["Ledger"]


class Ledger(ledger.Ledger):
    """Follows the loading of one SGLang model, which counts nothing and stages nothing."""

    def __init__(self, model: Any, rank: int = 0) -> None:
        from sglang.srt.model_loader.weight_utils import default_weight_loader

        super().__init__(model, default_weight_loader, wire_name, rank)
