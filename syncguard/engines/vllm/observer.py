"""Observes one rank of a live vLLM, in the process where its model lives."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from syncguard.engines.compiled import inputs_of_compiled_graphs
from syncguard.engines.merging import Answer, Places
from syncguard.engines.reachable import StorageReads, state_of, storage_of
from syncguard.engines.reading import Reader
from syncguard.engines.vllm import observe
from syncguard.engines.vllm.layers import held_weights, layer_table
from syncguard.engines.vllm.ledger import Ledger
from syncguard.observations import (
    EngineLayer,
    Loaded,
    ProbeOutput,
    ProbeTurn,
    QuantizedCanary,
    Rederivation,
    StoredTensor,
)

__all__ = ["Observer"]

_CACHES: Final = ("vllm.", "syncguard.engines.")
_APART: Final = 1 << 56
"""Addresses of different processes are kept so far apart."""


class Observer:
    """What can be asked of one rank; small values only are returned.

    Args:
        worker: vLLM's worker.
        world: How many ranks all replicas have; with several, paths begin with the rank.
        first: Number of the replica's first rank among them.
    """

    def __init__(self, worker: Any, world: int = 1, first: int = 0) -> None:
        self._runner = worker.model_runner
        self._rank: int = first + worker.rank if world > 1 else 0
        self._prefix = f"rank{self._rank}:" if world > 1 else ""
        self._ledger: Ledger | None = None
        self._reads: StorageReads | None = None
        self._watching = contextlib.ExitStack()

    def layers(self) -> list[EngineLayer]:
        """The rank's layer table."""
        return layer_table(self._model, self._rank)

    def weight_prints(self) -> Mapping[str, Answer]:
        """Fingerprints of what the rank holds of each weight."""
        return self._reader().weight_prints()

    def probe_exact(self) -> Mapping[str, Answer]:
        """Fingerprints of what the rank's serving paths compute with."""
        return self._reader().probe_exact()

    def places(self) -> Places:
        """Where in the weights the rank's rectangles are; without those that it holds whole."""
        held = held_weights(self._model)
        return {one.weight: one.place for one in held if one.place is not None}

    def probe_random(self, rows: int, seed: int) -> list[ProbeOutput]:
        """The rank's serving paths on random rows."""
        return self._mine(self._reader().probe_random(rows, seed))

    def probe_blocks(self, turns: Mapping[str, ProbeTurn]) -> list[ProbeOutput]:
        """The named serving paths of the rank, each on the rows of its turn."""
        return self._mine(self._reader().probe_blocks(turns))

    def rederive(self) -> list[Rederivation]:
        """The rank's derived tensors, derived again."""
        found = self._reader().rederive()
        return [replace(one, path=f"{self._prefix}{one.path}") for one in found]

    def poison(self, pattern: int) -> Mapping[str, int]:
        """Fill what the rank holds."""
        return self._reader().poison(pattern)

    def fetch_rows(self, weight: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """Those of the rows of a weight that the rank holds, as far as it does."""
        place = self.places().get(weight)
        if place is not None:
            first, last = place.rows
            rows = [row - first for row in rows if first <= row < last]
        return self._reader().fetch_rows(weight, rows)

    def quantize_canary(self) -> QuantizedCanary | None:
        """The canary through the rank's quantizer and kernel."""
        return observe.quantize_canary(self._model)

    def storage(self) -> list[StoredTensor]:
        """Every tensor that can be reached from the rank's model."""
        apart = self._rank * _APART
        return [
            replace(row, path=f"{self._prefix}{row.path}", storage=row.storage + apart)
            for row in storage_of(self._model, _CACHES)
        ]

    def state(self) -> Mapping[str, int]:
        """A fingerprint of every tensor that can be reached."""
        return self._told(state_of(self._model, _CACHES, self._of_requests()))

    def preserved(self) -> Mapping[str, int]:
        """A fingerprint of every tensor that can be reached and that no sync brings."""
        left_out = observe.carried(self._model) | self._of_requests()
        return self._told(state_of(self._model, _CACHES, left_out))

    def begin_reads(self) -> None:
        """Note from now on what operators and compiled code read."""
        self._reads = self._watching.enter_context(StorageReads())
        self._watching.enter_context(inputs_of_compiled_graphs(self._reads.note))

    def end_reads(self) -> frozenset[str]:
        """Stop noting; the paths of the storage table that were read."""
        assert self._reads is not None, "begin_reads() comes first"  # noqa: S101
        self._watching.close()
        paths = self._reads.paths(storage_of(self._model, _CACHES))
        return frozenset(f"{self._prefix}{path}" for path in paths)

    def open_ledger(self) -> None:
        """Follow the loaders from now on."""
        self._ledger = Ledger(self._model, self._rank)
        self._ledger.open()

    def unfolded(self) -> list[str]:
        """Modules with staged data that is not folded back."""
        assert self._ledger is not None, "open_ledger() comes first"  # noqa: S101
        return [f"{self._prefix}{path}" for path in self._ledger.unfolded()]

    def close_ledger(self) -> tuple[list[tuple[str, ...]], list[Loaded]]:
        """Stop following; buckets and writes."""
        assert self._ledger is not None, "open_ledger() comes first"  # noqa: S101
        self._ledger.close()
        return self._ledger.buckets, self._ledger.loaded

    @property
    def _model(self) -> Any:
        return self._runner.model

    def _reader(self) -> Reader:
        return observe.reader(self._model)

    def _mine(self, outputs: Sequence[ProbeOutput]) -> list[ProbeOutput]:
        return [replace(output, rank=self._rank) for output in outputs]

    def _told(self, state: Mapping[str, int]) -> dict[str, int]:
        return {f"{self._prefix}{path}": value for path, value in state.items()}

    def _of_requests(self) -> set[int]:
        """Addresses of the storages that hold the state of requests."""
        return {cache.untyped_storage().data_ptr() for cache in self._runner.kv_caches}
