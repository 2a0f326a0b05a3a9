"""The stub of an engine: the adapter of a small sampler that lives in this process."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.reachable import StorageReads, state_of, storage_of
from syncguard.errors import SyncguardError
from syncguard.observations import (
    EngineLayer,
    GraphReads,
    ProbeOutput,
    ProbeTurn,
    QuantizedCanary,
    Rederivation,
    ServedRequest,
    StoredTensor,
    SyncRecord,
    Unreadable,
    WeightPrint,
)
from syncguard.seams import Seams
from syncguard.stubs import observe
from syncguard.stubs.build import StubRank, build_rank
from syncguard.stubs.config import QuantConfig
from syncguard.stubs.engine_seams import engine_seams
from syncguard.stubs.generation import Server
from syncguard.stubs.graph import capture
from syncguard.stubs.memory import CACHES, Memory
from syncguard.stubs.rebalancing import rebalance
from syncguard.stubs.session import Receiver
from syncguard.stubs.threads import inference
from syncguard.stubs.topology import Topology, weight_specs
from syncguard.stubs.weights import initial_weights

__all__ = ["NotServing", "StubEngine"]

_EMBEDDING = "model.embed_tokens"
_HEAD = "lm_head"


class NotServing(SyncguardError):
    """The engine must not serve now: a sync is open, one has failed, or it is paused."""


class StubEngine:
    """A sampler of a few thousand weights with the seams of a real one.

    It starts on random weights, as an engine does with dummy weights.

    Args:
        topology: Of the engine.
        seed: Of the weights that it starts on.
    """

    name = "stub"

    def __init__(self, topology: Topology, *, seed: int = 0) -> None:
        self.topology = topology
        self.config = QuantConfig(topology)
        self._seed = seed
        self._specs = {spec.name: spec for spec in weight_specs(topology)}
        if topology.tied:
            tied = self._specs[f"{_EMBEDDING}.weight"]
            self._specs[f"{_HEAD}.weight"] = replace(tied, name=f"{_HEAD}.weight", kind="head")
        self.restart()

    @inference()
    def restart(self) -> None:
        """Build the engine again from its configuration, as a new process would."""
        topology = self.topology
        count = topology.ranks
        self.ranks = [
            build_rank(topology, number % count, number, self.config)
            for number in range(count * topology.replicas)
        ]
        self.receivers = [Receiver(rank, tied=topology.tied) for rank in self.ranks]
        self.servers = [
            Server(topology, self.ranks[first : first + count])
            for first in range(0, len(self.ranks), count)
        ]
        self.memory = Memory(self.ranks, self.prefix)
        self._record: SyncRecord | None = None
        self._failed = ""
        self._asleep = 0
        self._version = ""
        self._served: list[ServedRequest] = []
        self._load_initial()
        if topology.graph:
            self.capture()

    @property
    def wire(self) -> str:
        """See `syncguard.protocols.Engine`."""
        return self.topology.wire

    def environment(self) -> Mapping[str, str]:
        """See `syncguard.protocols.Engine`."""
        kernels = {f"{layer.method}/{layer.kernel}" for layer in self.layers()}
        return {
            "engine": "stub",
            "topology": str(self.topology),
            "device": "cpu",
            "quantization": self.topology.quantization,
            "torch": torch.__version__,
            "kernels": ", ".join(sorted(kernels)),
        }

    def layers(self) -> Sequence[EngineLayer]:
        """See `syncguard.protocols.Engine`."""
        return observe.layer_table(self.ranks)

    def begin(self, number: int, version: str) -> None:
        """See `syncguard.protocols.Engine`.

        Raises:
            RuntimeError: A session is open.
        """
        if self._record is not None:
            raise RuntimeError(f"sync {self._record.number} is still open")
        self._record = SyncRecord(number, version)
        self._began = time.perf_counter()
        for receiver in self.receivers:
            receiver.open()

    @inference()
    def send(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """See `syncguard.protocols.Engine`.

        Raises:
            RuntimeError: No session is open.
            ValueError: The engine has no such weight, or it has another shape.
        """
        record = self._opened()
        record.buckets.append(tuple(name for name, _ in bucket))
        for receiver in self.receivers:
            record.loaded += receiver.receive(bucket, len(record.buckets) - 1)

    @inference()
    def flush(self) -> None:
        """Complete and fold every layer of which a part has arrived."""
        for receiver in self.receivers:
            receiver.flush()

    @inference()
    def finish(self) -> SyncRecord:
        """See `syncguard.protocols.Engine`.

        Raises:
            RuntimeError: No session is open.
        """
        record = self._opened()
        record.unfolded = [
            f"{self.prefix(receiver.rank)}{path}"
            for receiver in self.receivers
            for path in receiver.partial()
        ]
        self.flush()
        for receiver in self.receivers:
            receiver.close()
        self.reset_caches()
        self.commit(record.version)
        self._record, self._failed = None, ""
        record.seconds = time.perf_counter() - self._began
        record.served_version = self.version()
        return record

    @inference()
    def abandon(self, error: str) -> SyncRecord:
        """See `syncguard.protocols.Engine`; the engine serves again after the next whole sync."""
        record = self._opened()
        for receiver in self.receivers:
            receiver.abandon()
        self._record, self._failed = None, error
        record.error, record.served_version = error, self.version()
        record.seconds = time.perf_counter() - self._began
        return record

    def commit(self, version: str) -> None:
        """Make a version the one that is served."""
        self._version = version

    def version(self) -> str:
        """The version of the weights that the engine reports; empty before the first sync."""
        return self._version

    @inference()
    def finalize(self) -> None:
        """Run all post-processing once more on what is loaded; this changes nothing."""
        for receiver in self.receivers:
            receiver.finalize()

    def capture(self) -> None:
        """Capture the decoding forward of each replica: it reads these storages from now on."""
        for server in self.servers:
            server.decode_read = capture(server.ranks)

    @inference()
    def rebalance(self, seed: int) -> None:
        """Place experts in other slots, each in at least one; what is served stays the same."""
        for server in self.servers:
            rebalance(server.ranks, seed)

    def seams(self) -> Seams:
        """Where a fault can be armed on the engine's side."""
        return engine_seams(self)

    def prefix(self, rank: StubRank) -> str:
        """What the paths of one rank begin with; empty if there is only one."""
        return f"rank{rank.number}:" if len(self.ranks) > 1 else ""

    def reset_caches(self) -> None:
        """Give up what was computed for earlier requests."""
        for server in self.servers:
            server.prefixes.reset()
            server.encoded.reset()

    def cache_versions(self) -> Mapping[str, str]:
        """The version of the weights behind every cached prefix and feature."""
        found = {}
        for number, server in enumerate(self.servers):
            for kind, cache in (("prefix", server.prefixes), ("encoder", server.encoded)):
                for key, version in cache.versions().items():
                    found[f"replica{number} {kind} {key}"] = version
        return found

    @inference()
    def sleep(self, level: int = 1) -> None:
        """Release memory; 1 keeps weights aside, 2 leaves them to the next sync."""
        self.reset_caches()
        self.memory.release(level)
        self._asleep = level

    @inference()
    def wake(self) -> None:
        """Take memory again; after level 2 the engine serves once a sync has brought weights."""
        self.memory.restore()
        if self._asleep > 1:
            self._failed = "the weights were released and have not been synchronized since"
        self._asleep = 0

    @inference()
    def poison(self, pattern: int) -> Mapping[str, int]:
        """See `syncguard.protocols.Engine`."""
        return observe.poison(self.ranks, pattern)

    @inference()
    def weight_prints(self) -> Mapping[str, WeightPrint | Unreadable]:
        """See `syncguard.protocols.Engine` and, for further copies, `syncguard.stubs.merging`."""
        return observe.weight_prints(self.ranks, self._specs)

    @inference()
    def probe_exact(self) -> Mapping[str, WeightPrint | Unreadable]:
        """See `syncguard.protocols.Engine` and, for further copies, `syncguard.stubs.merging`."""
        return observe.probe_exact(self.ranks, self._specs)

    @inference()
    def probe_random(self, rows: int, seed: int) -> Sequence[ProbeOutput]:
        """See `syncguard.protocols.Engine`."""
        return observe.probe_random(self.ranks, self._specs, rows, seed)

    @inference()
    def probe_blocks(self, turns: Mapping[str, ProbeTurn]) -> Sequence[ProbeOutput]:
        """See `syncguard.protocols.Engine`."""
        return observe.probe_blocks(self.ranks, self._specs, turns)

    @inference()
    def quantize_canary(self) -> QuantizedCanary | None:
        """See `syncguard.protocols.Engine`; serialized weights meet no quantizer of the engine."""
        return observe.quantize_canary(self.ranks) if self.topology.wire == "bf16" else None

    @inference()
    def rederive(self) -> Sequence[Rederivation]:
        """See `syncguard.protocols.Engine`."""
        return observe.rederive(self.ranks, self.prefix)

    def storage(self) -> Sequence[StoredTensor]:
        """See `syncguard.protocols.Engine`."""
        return [
            replace(row, path=f"{self.prefix(rank)}{row.path}")
            for rank in self.ranks
            for row in storage_of(rank, CACHES)
        ]

    def graph_reads(self) -> GraphReads:
        """See `syncguard.protocols.Engine`."""
        with StorageReads() as reads:
            self.generate([[0, 1, 0]] * len(self.servers), tokens=2, seed=0)
        return GraphReads(reads.paths(self.storage()), captured=self.topology.graph)

    @inference()
    def state(self) -> Mapping[str, int]:
        """See `syncguard.protocols.Engine`."""
        return {
            f"{self.prefix(rank)}{path}": print_
            for rank in self.ranks
            for path, print_ in state_of(rank, CACHES).items()
        }

    @inference()
    def fetch_rows(self, weight: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """See `syncguard.protocols.Engine`."""
        return observe.fetch_rows(self.ranks, self._specs, weight, rows)

    @inference()
    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """See `syncguard.protocols.Engine`; replicas take turns at prompts.

        Raises:
            NotServing: The engine must not serve now.
        """
        self.admit()
        during = self._record.number if self._record is not None else 0
        self._served.append(ServedRequest(self._version, during))
        results: dict[int, tuple[list[int], NDArray[np.float64]]] = {}
        for number, server in enumerate(self.servers):
            rows = range(number, len(prompts), len(self.servers))
            mine = [prompts[row] for row in rows]
            answers = server.serve(mine, tokens, seed + number, self._version)
            results.update(zip(rows, answers, strict=True))
        return [results[row] for row in range(len(prompts))]

    def admit(self) -> None:
        """Let a request in.

        Raises:
            NotServing: The engine must not serve now.
        """
        if self._record is not None:
            raise NotServing(f"sync {self._record.number} is open")
        if self._asleep:
            raise NotServing("the engine is paused")
        if self._failed:
            raise NotServing(f"no whole sync since: {self._failed}")

    def admits(self) -> bool:
        """Whether a request would be let in now."""
        try:
            self.admit()
        except NotServing:
            return False
        return True

    def served_requests(self) -> Sequence[ServedRequest]:
        """The calls of `generate` that were let in since the engine started."""
        return tuple(self._served)

    def preserved(self) -> Mapping[str, int]:
        """A fingerprint of every reachable tensor that no sync brings."""
        return self.memory.preserved()

    def close(self) -> None:
        """Nothing to release."""

    def _opened(self) -> SyncRecord:
        if self._record is None:
            raise RuntimeError("no sync is open: begin() comes first")
        return self._record

    def _load_initial(self) -> None:
        weights = initial_weights(self.topology, self._seed + 104_729)
        generator = torch.Generator().manual_seed(self._seed)
        for receiver in self.receivers:
            receiver.start(weights, generator)
