"""The adapter of a live SGLang engine."""

import contextlib
import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.calls import call_seams
from syncguard.engines.ranked import RankedEngine
from syncguard.engines.ranks import Ranks
from syncguard.engines.sglang.equivalent import EQUIVALENT
from syncguard.engines.sglang.launch import CUSTOM_LOADER, QUANTIZATIONS
from syncguard.engines.sglang.names import engine_name
from syncguard.engines.sockets import lasting_folder, socket_folder
from syncguard.engines.starting import temporary_files_in
from syncguard.errors import UsageError
from syncguard.observations import (
    QuantizedCanary,
    SyncRecord,
)
from syncguard.seams import Seams, merged_seams

__all__ = ["PATHS", "SglangEngine"]

PATHS: Final = ("session", "flattened", "loader", "disk")
"""How a sync reaches SGLang: tensors, or one buffer a bucket, or a custom loader, in a session; or
a folder."""


class Form(Protocol):
    """How SGLang runs: a runner in this process, or an engine with processes of its own."""

    model: Any
    session: Any
    ranks: Ranks

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """See `syncguard.protocols.Engine`."""

    def close(self) -> None:
        """End what it started."""


class SglangEngine(RankedEngine):
    """A live SGLang on a CPU: a model runner in this process, or a whole engine.

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
        served: Whether to start SGLang's engine with a scheduler process of its own, which takes
            requests and updates as it does in production. It ends this process when one of its
            own dies: see `syncguard.engines.hosting`.
        ranks: Tensor-parallel ranks; several have a scheduler process each.
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
        served: bool = False,
        ranks: int = 1,
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
        self._away = served or ranks > 1
        self._sockets = socket_folder() if self._away else lasting_folder()
        with temporary_files_in(self._sockets.name):
            form = _form(served=self._away, ranks=ranks)
            self._form: Form = form(checkpoint, quantization, exclude, load_format, seed)
        self._session = self._form.session
        self._count = ranks
        self._observe_by(self._form.ranks)

    @property
    def wire(self) -> str:
        """What low-precision weights must travel as: ``bf16``, or ``mxfp8``."""
        return "mxfp8" if "serialized" in QUANTIZATIONS[self._quantization] else "bf16"

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
            "ranks": str(self._count),
            "kernels": ", ".join(sorted(kernels)),
        }
        if "stand-in" in found["kernels"]:
            found["stand-ins"] = "GPU kernels are stand-ins: verdicts speak of the life cycle"
        return found

    def begin(self, number: int, version: str) -> None:
        """See `syncguard.protocols.Engine`."""
        if self._record is not None and self._record.error:
            with contextlib.suppress(Exception):  # a failed session stays open, else it is refused
                self._session.end()
        self._record = SyncRecord(number, version)
        self._began = time.perf_counter()
        if self._path == "disk":
            self._disk = Path(tempfile.mkdtemp(dir=self._folder.name))
        else:
            self._session.begin()
        self._ranks.ask("open_ledger")

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
        record = self._record
        if self._path == "disk":
            shutil.copy(self._checkpoint / "config.json", self._disk)
            self._session.load_from_disk(str(self._disk), record.version)
            shutil.rmtree(self._disk)
        else:
            self._session.end()
        self._close_ledger(record)
        record.served_version = self.version()
        return record

    def version(self) -> str:
        """The version of the weights that SGLang has recorded."""
        version: str = self._session.version
        return version

    def finalize(self) -> None:
        """See `syncguard.protocols.EngineExtras`: a session that brings nothing."""
        self._session.begin()
        self._session.end()

    def equivalent_faults(self) -> Mapping[str, str]:
        """See `syncguard.protocols.EngineExtras`."""
        return dict(EQUIVALENT.get(self._quantization, {}))

    def seams(self) -> Seams:
        """Where a fault can be armed in this process."""
        if self.ranks_apart():
            return call_seams(self)
        from syncguard.engines.sglang.seams import session_seams

        (of_rank,) = self._ranks.ask("seams")
        return merged_seams(call_seams(self), of_rank, session_seams(self._session))

    def ranks_apart(self) -> bool:
        """See `syncguard.protocols.EngineExtras`."""
        return self._away

    @property
    def _model(self) -> Any:
        """The model, where it is in this process."""
        return self._form.model

    def abandon(self, error: str) -> SyncRecord:
        """See `syncguard.protocols.Engine`; SGLang has no way to give up a session."""
        assert self._record is not None, "begin() comes first"  # noqa: S101
        record = self._record
        record.error = error
        self._close_ledger(record)
        return record

    def quantize_canary(self) -> QuantizedCanary | None:
        """See `syncguard.protocols.Engine`; serialized weights meet no quantizer of SGLang.

        All ranks run the same code, so the first one is asked.
        """
        if self._quantization != "mxfp8-online":
            return None
        canary: QuantizedCanary = self._ranks.ask("quantize_canary")[0]
        return canary

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """See `syncguard.protocols.Engine`."""
        return self._form.generate(prompts, tokens, seed)

    def close(self) -> None:
        """End what was started, and remove temporary files."""
        self._form.close()
        self._folder.cleanup()
        if self._away:
            self._sockets.cleanup()


def _form(*, served: bool, ranks: int) -> Callable[..., Form]:
    if served:
        from syncguard.engines.sglang.served import Served

        return functools.partial(Served, ranks=ranks)
    from syncguard.engines.sglang.inprocess import InProcess

    return InProcess


def _flattened(named: list[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket

    bucket = FlattenedTensorBucket(named_tensors=named)
    return {
        "flattened_tensor": bucket.get_flattened_tensor(),
        "metadata": bucket.get_metadata(),
    }
