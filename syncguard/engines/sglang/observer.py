"""What is observed of a live SGLang model, in the process where its tensors live."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from syncguard.engines.held import carried
from syncguard.engines.reachable import StorageReads, state_of, storage_of
from syncguard.engines.reading import Reader
from syncguard.engines.sglang import observe
from syncguard.engines.sglang.layers import held_weights, layer_table
from syncguard.engines.sglang.ledger import Ledger
from syncguard.observations import (
    EngineLayer,
    GraphReads,
    Loaded,
    ProbeOutput,
    ProbeTurn,
    QuantizedCanary,
    Rederivation,
    StoredTensor,
    Unreadable,
    WeightPrint,
)

__all__ = ["Observer"]

_CACHES: Final = ("sglang.", "syncguard.engines.")


class Observer:
    """Observes one model runner; see `syncguard.protocols.Engine` for what is not explained.

    Args:
        runner: The model runner.
        rank: Its rank.
    """

    def __init__(self, runner: Any, rank: int = 0) -> None:
        self._runner = runner
        self._model = runner.model
        self._rank = rank
        self._recording = contextlib.ExitStack()

    def layers(self) -> Sequence[EngineLayer]:
        """See `syncguard.protocols.Engine`."""
        return layer_table(self._model, self._rank)

    def follow_loading(self) -> None:
        """Keep a ledger of what is loaded from now on."""
        self._ledger = Ledger(self._model, self._rank)
        self._ledger.open()

    def loaded(self) -> tuple[list[tuple[str, ...]], list[Loaded]]:
        """End the ledger; the names in each bucket, and what was written."""
        self._ledger.close()
        return self._ledger.buckets, self._ledger.loaded

    def poison(self, pattern: int) -> Mapping[str, int]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().poison(pattern)

    def weight_prints(self) -> Mapping[str, WeightPrint | Unreadable]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().weight_prints()

    def probe_exact(self) -> Mapping[str, WeightPrint | Unreadable]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().probe_exact()

    def probe_random(self, rows: int, seed: int) -> Sequence[ProbeOutput]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().probe_random(rows, seed)

    def probe_blocks(self, turns: Mapping[str, ProbeTurn]) -> Sequence[ProbeOutput]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().probe_blocks(turns)

    def rederive(self) -> Sequence[Rederivation]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().rederive()

    def storage(self) -> Sequence[StoredTensor]:
        """See `syncguard.protocols.Engine`."""
        return storage_of(self._model, _CACHES)

    def record_reads(self) -> None:
        """Note from now on which storages this thread's operators read."""
        self._reads = StorageReads()
        self._recording.enter_context(self._reads)

    def recorded_reads(self) -> GraphReads:
        """End the notes; see `syncguard.protocols.Engine.graph_reads`."""
        self._recording.close()
        return GraphReads(self._reads.paths(self.storage()), captured=False)

    def state(self) -> Mapping[str, int]:
        """See `syncguard.protocols.Engine`."""
        return state_of(self._model, _CACHES, self._of_requests())

    def preserved(self) -> Mapping[str, int]:
        """See `syncguard.protocols.EngineExtras`."""
        filled = carried(self._model, held_weights(self._model), observe.derived_names)
        return state_of(self._model, _CACHES, filled | self._of_requests())

    def quantize_canary(self) -> QuantizedCanary:
        """See `syncguard.protocols.Engine`; for layers that SGLang quantizes itself."""
        return observe.quantize_canary(self._model)

    def fetch_rows(self, weight: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().fetch_rows(weight, rows)

    def _of_requests(self) -> set[int]:
        """Addresses of the storages that hold the state of requests."""
        pool = self._runner.token_to_kv_pool
        caches = [*pool.k_buffer, *pool.v_buffer]
        return {cache.untyped_storage().data_ptr() for cache in caches}

    def _reader(self) -> Reader:
        return observe.reader(self._model)
