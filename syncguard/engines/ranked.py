"""What an engine observes by asking its ranks and putting their answers together."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.merging import Places, merge_prints, merge_rows, merged_reads
from syncguard.engines.ranks import Ranks
from syncguard.observations import (
    EngineLayer,
    GraphReads,
    ProbeOutput,
    ProbeTurn,
    Rederivation,
    StoredTensor,
    SyncRecord,
    Unreadable,
    WeightPrint,
)

__all__ = ["Generate", "RankedEngine"]

Generate = Callable[..., object]
"""As `syncguard.protocols.Engine.generate`."""


class RankedEngine:
    """The observations of an adapter, which are the same for all engines of ranks.

    See `syncguard.protocols.Engine` for what is not explained. An adapter calls `_observe_by`
    when its ranks are there.
    """

    _ranks: Ranks
    _places: Sequence[Places]
    _began: float

    def _observe_by(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._places = ranks.ask("places")

    def layers(self) -> Sequence[EngineLayer]:
        """See `syncguard.protocols.Engine`."""
        return [layer for table in self._ranks.ask("layers") for layer in table]

    def poison(self, pattern: int) -> Mapping[str, int]:
        """See `syncguard.protocols.Engine`."""
        counts: dict[str, int] = {}
        for found in self._ranks.ask("poison", pattern):
            for weight, nbytes in found.items():
                counts[weight] = counts.get(weight, 0) + nbytes
        return counts

    def weight_prints(self) -> Mapping[str, WeightPrint | Unreadable]:
        """See `syncguard.protocols.Engine`."""
        return merge_prints(self._ranks.ask("weight_prints"), self._places)

    def probe_exact(self) -> Mapping[str, WeightPrint | Unreadable]:
        """See `syncguard.protocols.Engine`."""
        return merge_prints(self._ranks.ask("probe_exact"), self._places)

    def probe_random(self, rows: int, seed: int) -> Sequence[ProbeOutput]:
        """See `syncguard.protocols.Engine`."""
        return [one for found in self._ranks.ask("probe_random", rows, seed) for one in found]

    def probe_blocks(self, turns: Mapping[str, ProbeTurn]) -> Sequence[ProbeOutput]:
        """See `syncguard.protocols.Engine`."""
        return [one for found in self._ranks.ask("probe_blocks", dict(turns)) for one in found]

    def rederive(self) -> Sequence[Rederivation]:
        """See `syncguard.protocols.Engine`."""
        return [one for found in self._ranks.ask("rederive") for one in found]

    def storage(self) -> Sequence[StoredTensor]:
        """See `syncguard.protocols.Engine`."""
        return [row for table in self._ranks.ask("storage") for row in table]

    def graph_reads(self) -> GraphReads:
        """See `syncguard.protocols.Engine`; no engine captures graphs on a CPU.

        A model that is compiled is a captured graph only as far as tensors were folded into it:
        others its code is handed at each call.
        """
        return merged_reads(
            [read for ranks, generate in self._answering() for read in _reads_of(ranks, generate)]
        )

    def state(self) -> Mapping[str, int]:
        """See `syncguard.protocols.Engine`."""
        found = self._ranks.ask("state")
        return {path: print_ for state in found for path, print_ in state.items()}

    def preserved(self) -> Mapping[str, int]:
        """See `syncguard.protocols.EngineExtras`."""
        found = self._ranks.ask("preserved")
        return {path: print_ for state in found for path, print_ in state.items()}

    def fetch_rows(self, weight: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """See `syncguard.protocols.Engine`; ``<name>@rank<n>`` is the copy on that rank."""
        name, _, copy = weight.partition("@rank")
        answers = self._ranks.ask("fetch_rows", name, list(rows))
        if len(answers) == 1 or copy:
            own: Mapping[str, torch.Tensor] = answers[int(copy or 0)]
            return own
        return merge_rows(answers, [places.get(name) for places in self._places], rows)

    def on_ranks(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """See `syncguard.protocols.EngineExtras`."""
        return self._ranks.ask("run", function, *arguments)

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """See `syncguard.protocols.Engine`."""
        raise NotImplementedError

    def _answering(self) -> Iterable[tuple[Ranks, Generate]]:
        """Ranks that answer a request together, and what makes it; here all do."""
        return [(self._ranks, self.generate)]

    def _close_ledger(self, record: SyncRecord) -> None:
        """Take down what ranks have noted; what reached any of them has arrived.

        Ranks of a replica are handed the same; of several replicas the one that has the most
        counts, so that one that was left out is not taken for a weight that was never sent.
        """
        found = self._ranks.ask("close_ledger")
        record.seconds = time.perf_counter() - self._began
        record.buckets = max((buckets for buckets, _ in found), key=len)
        record.loaded = [row for _, loaded in found for row in loaded]


def _reads_of(ranks: Ranks, generate: Generate) -> list[GraphReads]:
    ranks.ask("begin_reads")
    try:
        generate([[1, 2, 3]], tokens=2, seed=0)
    finally:
        read = ranks.ask("end_reads")
    return read
