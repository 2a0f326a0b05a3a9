"""Observes one rank of a live engine of torch modules, in the process where its model lives."""

import abc
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from syncguard.engines import held
from syncguard.engines.compiled import Folded, tensors_of_compiled_graphs
from syncguard.engines.held import Held
from syncguard.engines.ledger import Ledger
from syncguard.engines.merging import Answer, Places
from syncguard.engines.reachable import StorageReads, state_of, storage_of
from syncguard.engines.reading import Reader
from syncguard.observations import (
    EngineLayer,
    GraphReads,
    Loaded,
    ProbeOutput,
    ProbeTurn,
    QuantizedCanary,
    Rederivation,
    StoredTensor,
)
from syncguard.seams import Seams

__all__ = ["Observer"]

_APART: Final = 1 << 56
"""Addresses of different processes are kept so far apart."""


class Observer(abc.ABC):
    """What can be asked of one rank; small values only are returned.

    Args:
        runner: The engine's model runner.
        rank: Its rank.
        world: How many ranks there are; with several, paths begin with the rank.

    Attributes:
        runner: As given.
        rank: As given; 0 if there is one.
        prefix: What paths begin with; empty if there is one rank.
    """

    caches: tuple[str, ...]
    """Packages whose modules and classes may hold tensors too, see `reachable_tensors`."""

    def __init__(self, runner: Any, rank: int = 0, world: int = 1) -> None:
        self.runner = runner
        self.rank = rank if world > 1 else 0
        self.prefix = f"rank{rank}:" if world > 1 else ""
        self._ledger: Ledger | None = None
        self._reads: StorageReads | None = None
        self._folded = Folded()
        self._watching = contextlib.ExitStack()

    @abc.abstractmethod
    def layers(self) -> list[EngineLayer]:
        """The rank's layer table."""

    @abc.abstractmethod
    def quantize_canary(self) -> QuantizedCanary | None:
        """The canary through the rank's quantizer and kernel."""

    def weight_prints(self) -> Mapping[str, Answer]:
        """Fingerprints of what the rank holds of each weight."""
        return self._reader().weight_prints()

    def probe_exact(self) -> Mapping[str, Answer]:
        """Fingerprints of what the rank's serving paths compute with."""
        return self._reader().probe_exact()

    def places(self) -> Places:
        """Where in the weights the rank's rectangles are; without those that it holds whole."""
        return {one.weight: one.place for one in self._held() if one.place is not None}

    def probe_random(self, rows: int, seed: int) -> list[ProbeOutput]:
        """The rank's serving paths on random rows."""
        return self._mine(self._reader().probe_random(rows, seed))

    def probe_blocks(self, turns: Mapping[str, ProbeTurn]) -> list[ProbeOutput]:
        """The named serving paths of the rank, each on the rows of its turn."""
        return self._mine(self._reader().probe_blocks(turns))

    def rederive(self) -> list[Rederivation]:
        """The rank's derived tensors, derived again."""
        found = self._reader().rederive()
        return [replace(one, path=f"{self.prefix}{one.path}") for one in found]

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

    def storage(self) -> list[StoredTensor]:
        """Every tensor that can be reached from the rank's model."""
        apart = self.rank * _APART
        return [
            replace(row, path=f"{self.prefix}{row.path}", storage=row.storage + apart)
            for row in self._table()
        ]

    def state(self) -> Mapping[str, int]:
        """A fingerprint of every tensor that can be reached."""
        left_out = self._of_requests() | self._handles()
        return self._told(state_of(self._model, self.caches, left_out))

    def preserved(self) -> Mapping[str, int]:
        """A fingerprint of every tensor that can be reached and that no sync brings."""
        filled = held.carried(self._model, self._held(), self._derived_names)
        left_out = filled | self._of_requests() | self._handles()
        return self._told(state_of(self._model, self.caches, left_out))

    def begin_reads(self) -> None:
        """Note from now on what this thread's operators and compiled code read."""
        self._reads = self._watching.enter_context(StorageReads())
        self._folded = Folded()
        watch = tensors_of_compiled_graphs(self._reads.note, self._folded.note)
        self._watching.enter_context(watch)

    def end_reads(self) -> GraphReads:
        """Stop noting; the paths of the storage table that were read.

        Code into which the compiler has folded tensors holds them as a captured graph does. What
        closures hold besides, it is handed at each call, and may be another tensor each time.
        """
        assert self._reads is not None, "begin_reads() comes first"  # noqa: S101
        self._watching.close()
        table = self._table()
        paths, folded = self._reads.paths(table), self._folded.paths(self._model, self.caches)
        folded &= {row.path for row in table}
        if folded:
            paths = folded | {row.path for row in table if row.path in paths and not _in_code(row)}
        told = frozenset(f"{self.prefix}{path}" for path in paths)
        return GraphReads(told, captured=bool(folded))

    def open_ledger(self) -> None:
        """Follow the loaders from now on."""
        self._ledger = self._new_ledger()
        self._ledger.open()

    def unfolded(self) -> list[str]:
        """Modules with staged data that is not folded back."""
        assert self._ledger is not None, "open_ledger() comes first"  # noqa: S101
        return [f"{self.prefix}{path}" for path in self._ledger.unfolded()]

    def close_ledger(self) -> tuple[list[tuple[str, ...]], list[Loaded]]:
        """Stop following; buckets and writes."""
        assert self._ledger is not None, "open_ledger() comes first"  # noqa: S101
        self._ledger.close()
        return self._ledger.buckets, self._ledger.loaded

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with this observer first: so faults are armed where the model is."""
        return function(self, *arguments)

    @abc.abstractmethod
    def seams(self) -> Seams:
        """Where a fault can be armed in this process."""

    @property
    def _model(self) -> Any:
        return self.runner.model

    @abc.abstractmethod
    def _reader(self) -> Reader:
        """Reads the rank's model."""

    @abc.abstractmethod
    def _held(self) -> Iterable[Held]:
        """The learner's weights in the rank's model."""

    @abc.abstractmethod
    def _derived_names(self, module: Any) -> Iterable[str]:
        """Names of the readable tensors that are derived for a module's kernel."""

    @abc.abstractmethod
    def _new_ledger(self) -> Ledger:
        """A ledger of the rank's model."""

    @abc.abstractmethod
    def _caches_of_requests(self) -> Iterable[torch.Tensor]:
        """Tensors that hold the state of requests."""

    def _handles(self) -> set[int]:
        """Addresses of storages that hold nothing but the address of a native object.

        Such an address is another one after each sync, and where it lies is of no account: the
        object behind it is seen by probes.
        """
        return set()

    def _table(self) -> list[StoredTensor]:
        handles = self._handles()
        rows = storage_of(self._model, self.caches)
        return [row for row in rows if row.storage not in handles]

    def _mine(self, outputs: Sequence[ProbeOutput]) -> list[ProbeOutput]:
        return [replace(output, rank=self.rank) for output in outputs]

    def _told(self, state: Mapping[str, int]) -> dict[str, int]:
        return {f"{self.prefix}{path}": value for path, value in state.items()}

    def _of_requests(self) -> set[int]:
        return {cache.untyped_storage().data_ptr() for cache in self._caches_of_requests()}


def _in_code(row: StoredTensor) -> bool:
    """Whether only a closure holds a tensor."""
    return row.kind == "closure"
