"""The adapter of a live SGLang engine."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.reading import Reader
from syncguard.engines.sglang.launch import CUSTOM_LOADER, QUANTIZATIONS, start_runner
from syncguard.engines.sglang.names import engine_name
from syncguard.engines.starting import temporary_files_in
from syncguard.errors import UsageError
from syncguard.observations import (
    EngineLayer,
    GraphReads,
    ProbeOutput,
    ProbeTurn,
    QuantizedCanary,
    Rederivation,
    StoredTensor,
    SyncRecord,
    Unreadable,
    WeightPrint,
)
from syncguard.seams import Seams

__all__ = ["PATHS", "SglangEngine"]

PATHS: Final = ("session", "flattened", "loader", "disk")
"""How a sync reaches SGLang: tensors, or one buffer a bucket, or a custom loader, in a session; or
a folder."""

_CACHES: Final = ("sglang.", "syncguard.engines.")


class SglangEngine:
    """A live SGLang model runner in this process, on a CPU.

    Loader, quantization method, session and forward are SGLang's. GPU kernels of the MXFP8 path
    are stand-ins (`syncguard.engines.sglang.standins`): verdicts speak of the life cycle of
    weights.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `QUANTIZATIONS`.
        exclude: Linear layers that are left unquantized where the configuration names them.
        path: One of `PATHS`.
        load_format: SGLang's; ``dummy`` starts on random weights.
        seed: Of SGLang.
    """

    name = "sglang"

    def __init__(
        self,
        checkpoint: Path,
        quantization: str = "mxfp8",
        *,
        exclude: Sequence[str] = (),
        path: str = "session",
        load_format: str = "dummy",
        seed: int = 0,
    ) -> None:
        if path not in PATHS:
            raise UsageError(f"unknown sync path {path!r}; known: {', '.join(PATHS)}")
        if quantization not in QUANTIZATIONS:
            known = ", ".join(QUANTIZATIONS)
            raise UsageError(f"unknown quantization {quantization!r}; known: {known}")
        self._checkpoint = checkpoint
        self._path = path
        self._quantization = quantization
        self._record: SyncRecord | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="syncguard-sglang-")
        with temporary_files_in(self._folder.name):
            self._runner = start_runner(checkpoint, quantization, exclude, load_format, seed)
        self._model = self._runner.model
        from syncguard.engines.sglang.session import Session

        self._session = Session(self._runner)

    @property
    def wire(self) -> str:
        """What low-precision weights must travel as: ``bf16``, or ``mxfp8``."""
        return "mxfp8" if self._quantization == "mxfp8" else "bf16"

    def environment(self) -> Mapping[str, str]:
        """Engine, versions and the kernels in use."""
        import sglang

        kernels = {f"{layer.method}/{layer.kernel or 'none'}" for layer in self.layers()}
        found = {
            "name": "sglang",
            "version": sglang.__version__,
            "device": "cpu",
            "quantization": self._quantization,
            "path": self._path,
            "kernels": ", ".join(sorted(kernels)),
        }
        if "stand-in" in found["kernels"]:
            found["stand-ins"] = "GPU kernels are stand-ins: verdicts speak of the life cycle"
        return found

    def layers(self) -> Sequence[EngineLayer]:
        """See `syncguard.protocols.Engine`."""
        from syncguard.engines.sglang.layers import layer_table

        return layer_table(self._model)

    def begin(self, number: int, version: str) -> None:
        """See `syncguard.protocols.Engine`."""
        from syncguard.engines.sglang.ledger import Ledger

        if self._record is not None and self._record.error:
            with contextlib.suppress(Exception):  # a failed session stays open, else it is refused
                self._session.end()
        self._record = SyncRecord(number, version)
        self._ledger = Ledger(self._model)
        self._began = time.perf_counter()
        if self._path == "disk":
            self._disk = Path(tempfile.mkdtemp(dir=self._folder.name))
        else:
            self._session.begin()
        self._ledger.open()

    def send(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """See `syncguard.protocols.Engine`."""
        assert self._record is not None, "begin() comes first"  # noqa: S101
        version = self._record.version
        named = [(engine_name(name), tensor) for name, tensor in bucket]
        if self._path == "session":
            self._session.update(named, None, version)
        elif self._path == "flattened":
            self._session.update(_flattened(named), "flattened_bucket", version)
        elif self._path == "loader":
            self._session.update(list(bucket), CUSTOM_LOADER, version)
        else:
            from safetensors.torch import save_file

            number = len(list(self._disk.iterdir()))
            tensors = {name: tensor.contiguous() for name, tensor in bucket}
            save_file(tensors, self._disk / f"model-{number:05}.safetensors")

    def finish(self) -> SyncRecord:
        """See `syncguard.protocols.Engine`."""
        assert self._record is not None, "begin() comes first"  # noqa: S101
        record, ledger = self._record, self._ledger
        if self._path == "disk":
            shutil.copy(self._checkpoint / "config.json", self._disk)
            self._session.load_from_disk(str(self._disk), record.version)
            shutil.rmtree(self._disk)
        else:
            self._session.end()
        ledger.close()
        record.seconds = time.perf_counter() - self._began
        record.served_version = self.version()
        record.buckets, record.loaded = ledger.buckets, ledger.loaded
        return record

    def version(self) -> str:
        """The version of the weights that SGLang has recorded."""
        return self._session.version

    def seams(self) -> Seams:
        """Where a fault can be armed on the engine's side."""
        from syncguard.engines.sglang.seams import engine_seams

        return engine_seams(self, self._model, self._session)

    def abandon(self, error: str) -> SyncRecord:
        """See `syncguard.protocols.Engine`; SGLang has no way to give up a session."""
        assert self._record is not None, "begin() comes first"  # noqa: S101
        record = self._record
        record.error = error
        self._ledger.close()
        record.seconds = time.perf_counter() - self._began
        record.buckets, record.loaded = self._ledger.buckets, self._ledger.loaded
        return record

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
        from syncguard.engines.reachable import storage_of

        return storage_of(self._model, _CACHES)

    def graph_reads(self) -> GraphReads:
        """See `syncguard.protocols.Engine`."""
        from syncguard.engines.reachable import StorageReads

        with StorageReads() as reads:
            self.generate([[1, 2, 3]], tokens=2, seed=0)
        return GraphReads(reads.paths(self.storage()), captured=False)

    def state(self) -> Mapping[str, int]:
        """See `syncguard.protocols.Engine`."""
        from syncguard.engines.reachable import state_of

        pool = self._runner.token_to_kv_pool
        caches = [*pool.k_buffer, *pool.v_buffer]
        requests = {cache.untyped_storage().data_ptr() for cache in caches}
        return state_of(self._model, _CACHES, requests)

    def quantize_canary(self) -> QuantizedCanary | None:
        """See `syncguard.protocols.Engine`; serialized weights meet no quantizer of SGLang."""
        from syncguard.engines.sglang import observe

        online = self._quantization == "mxfp8-online"
        return observe.quantize_canary(self._model) if online else None

    def fetch_rows(self, weight: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().fetch_rows(weight, rows)

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """See `syncguard.protocols.Engine`."""
        from syncguard.engines.sglang.generation import generate

        return generate(self._runner, prompts, tokens, seed)

    def close(self) -> None:
        """Remove temporary files; SGLang's global state goes down with the process."""
        self._folder.cleanup()

    def _reader(self) -> Reader:
        from syncguard.engines.sglang.observe import reader

        return reader(self._model)


def _flattened(named: list[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    bucket = FlattenedTensorBucket(named_tensors=named)
    return {
        "flattened_tensor": bucket.get_flattened_tensor(),
        "metadata": bucket.get_metadata(),
    }
