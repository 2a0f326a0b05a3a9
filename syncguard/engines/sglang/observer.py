"""Observes one rank of a live SGLang, in the process where its model lives."""

from collections.abc import Iterable
from typing import Any

import torch

from syncguard.engines import observer
from syncguard.engines.held import Held
from syncguard.engines.reading import Reader
from syncguard.engines.sglang import observe
from syncguard.engines.sglang.layers import held_weights, layer_table
from syncguard.engines.sglang.ledger import Ledger
from syncguard.observations import EngineLayer, QuantizedCanary
from syncguard.seams import Seams

__all__ = ["Observer"]


class Observer(observer.Observer):
    """What can be asked of one rank; see `syncguard.engines.observer.Observer`."""

    caches = ("sglang.", "syncguard.engines.")

    def layers(self) -> list[EngineLayer]:
        """See `syncguard.engines.observer.Observer`."""
        return layer_table(self._model, self.rank)

    def quantize_canary(self) -> QuantizedCanary:
        """See `syncguard.engines.observer.Observer`; for layers that SGLang quantizes itself."""
        return observe.quantize_canary(self._model)

    def seams(self) -> Seams:
        """See `syncguard.engines.observer.Observer`."""
        from syncguard.engines.sglang.seams import rank_seams

        return rank_seams(self._model)

    def _reader(self) -> Reader:
        return observe.reader(self._model)

    def _held(self) -> Iterable[Held]:
        return held_weights(self._model)

    def _derived_names(self, module: Any) -> Iterable[str]:
        return observe.derived_names(module)

    def _new_ledger(self) -> Ledger:
        return Ledger(self._model, self.rank)

    def _caches_of_requests(self) -> Iterable[torch.Tensor]:
        pool = self.runner.token_to_kv_pool
        return [*pool.k_buffer, *pool.v_buffer]
