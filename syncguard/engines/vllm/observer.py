"""Observes one rank of a live vLLM, in the process where its model lives."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from syncguard.engines import observer
from syncguard.engines.held import Held
from syncguard.engines.reading import Reader
from syncguard.engines.vllm import observe
from syncguard.engines.vllm.drafted import preserved_in, storage_in
from syncguard.engines.vllm.layers import held_weights, layer_table
from syncguard.engines.vllm.ledger import Ledger
from syncguard.observations import EngineLayer, QuantizedCanary, StoredTensor
from syncguard.seams import Seams

__all__ = ["Observer"]


class Observer(observer.Observer):
    """What can be asked of one rank.

    Args:
        worker: vLLM's worker.
        world: How many ranks all replicas have.
        first: Number of the replica's first rank among them.
    """

    caches = ("vllm.", "syncguard.engines.")

    def __init__(self, worker: Any, world: int = 1, first: int = 0) -> None:
        super().__init__(worker.model_runner, first + worker.rank, world)
        self._worker = worker

    def layers(self) -> list[EngineLayer]:
        """See `syncguard.engines.observer.Observer`."""
        return layer_table(self._model, self.rank)

    def preserved(self) -> Mapping[str, int]:
        """See `syncguard.engines.observer.Observer`; with the model that drafts beside it."""
        kept, draft = super().preserved(), self._draft
        if draft is None:
            return kept
        mine = {row.storage for row in super()._table()}
        return {**kept, **self._told(preserved_in(draft, self._model, mine | self._of_requests()))}

    def quantize_canary(self) -> QuantizedCanary | None:
        """See `syncguard.engines.observer.Observer`."""
        return observe.quantize_canary(self._model)

    def seams(self) -> Seams:
        """See `syncguard.engines.observer.Observer`."""
        from syncguard.engines.vllm.seams import rank_seams

        return rank_seams(self._model, self._worker)

    def _reader(self) -> Reader:
        return observe.reader(self._model)

    def _held(self) -> Iterable[Held]:
        return held_weights(self._model)

    def _derived_names(self, module: Any) -> Iterable[str]:
        return observe.derived_names(module)

    def _handles(self) -> set[int]:
        return observe.handles(self._model)

    def _new_ledger(self) -> Ledger:
        return Ledger(self._model, self.rank)

    @property
    def _draft(self) -> Any:
        return self.runner.get_draft_model()

    def _table(self) -> list[StoredTensor]:
        rows, draft = super()._table(), self._draft
        mine = {row.storage for row in rows}
        return rows if draft is None else [*rows, *storage_in(draft, mine)]

    def _caches_of_requests(self) -> Iterable[torch.Tensor]:
        caches: list[torch.Tensor] = self.runner.kv_caches
        return caches
