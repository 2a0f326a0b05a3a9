"""The adapter of a live vLLM engine."""

import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.buckets import write_bucket
from syncguard.engines.ranked import RankedEngine
from syncguard.engines.ranks import LocalRank, Ranks
from syncguard.engines.starting import temporary_files_in
from syncguard.engines.vllm.launch import EXCLUDED, QUANTIZATIONS, start
from syncguard.engines.vllm.output import output_of_workers
from syncguard.errors import Unsupported, UsageError
from syncguard.observations import (
    QuantizedCanary,
    SyncRecord,
)
from syncguard.seams import Seams

__all__ = ["PATHS", "VllmEngine"]

PATHS: Final = ("transfer", "reload", "extension")
"""How a sync reaches vLLM: its weight-update lifecycle, ``reload_weights`` with tensors, or the
same called by an extension of its workers, which reads files."""

PROCESSES: Final = ("in", "own")
"""Where vLLM runs: in this process, or in one of its own."""

_ALIVE: Final[list[Any]] = []
"""An engine that is collected tears down the process groups of all others in the process."""


class VllmEngine(RankedEngine):
    """A live vLLM engine on a CPU, in this process, or with ranks in processes of their own.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `syncguard.engines.vllm.launch.QUANTIZATIONS`.
        exclude: Modules that are left unquantized where the configuration names them; by default
            those in `syncguard.engines.vllm.launch.EXCLUDED`.
        path: One of `PATHS`; ``reload`` does not lead to other processes.
        load_format: vLLM's; ``dummy`` starts on random weights.
        seed: Of vLLM.
        ranks: Tensor-parallel ranks; several have a process each.
        process: One of `PROCESSES`.
        compiled: Whether its model is compiled.
    """

    name = "vllm"

    def __init__(
        self,
        checkpoint: Path,
        quantization: str = "mxfp8",
        *,
        exclude: Sequence[str] | None = None,
        path: str = "transfer",
        load_format: str = "dummy",
        seed: int = 0,
        ranks: int = 1,
        process: str = "in",
        compiled: bool = False,
    ) -> None:
        if path not in PATHS:
            raise UsageError(f"unknown sync path {path!r}; known: {', '.join(PATHS)}")
        if quantization not in QUANTIZATIONS:
            known = ", ".join(QUANTIZATIONS)
            raise UsageError(f"unknown quantization {quantization!r}; known: {known}")
        if process not in PROCESSES:
            raise UsageError(f"unknown process {process!r}; known: {', '.join(PROCESSES)}")
        self._away = ranks > 1 or process == "own"
        if self._away and path == "reload":
            raise UsageError(
                "path 'reload' hands over tensors, which cannot cross to other processes\n"
                "  what to do: take path 'transfer' or 'extension'"
            )
        self._path = path
        self._quantization = quantization
        self._count = ranks
        self._record: SyncRecord | None = None
        self._broken = ""
        self._staged: list[tuple[str, torch.Tensor]] = []
        self._told = {"process": process, "compiled": str(compiled).lower()}
        self._folder = tempfile.TemporaryDirectory(prefix="syncguard-vllm-")
        with contextlib.ExitStack() as starting:
            starting.enter_context(temporary_files_in(self._folder.name))
            if self._away:
                log = Path(self._folder.name, "workers.log")
                starting.enter_context(output_of_workers(log))
            self._llm = start(
                checkpoint,
                quantization,
                exclude=EXCLUDED[quantization] if exclude is None else exclude,
                load_format=load_format,
                seed=seed,
                ranks=ranks,
                process=process,
                compiled=compiled,
            )
        _ALIVE.append(self._llm)
        from syncguard.engines.vllm.observer import Observer
        from syncguard.engines.vllm.ranks import WorkerRanks

        asked: Ranks
        if self._away:
            asked = WorkerRanks(self._llm, ranks)
        else:
            self._worker = self._llm.llm_engine.model_executor.driver_worker.worker
            self._model = self._worker.model_runner.model
            asked = LocalRank(Observer(self._worker))
        self._observe_by(asked)

    @property
    def wire(self) -> str:
        """See `syncguard.protocols.Engine`."""
        return "mxfp8" if self._quantization == "modelopt-mxfp8" else "bf16"

    def environment(self) -> Mapping[str, str]:
        """Engine, versions and the kernels in use."""
        import vllm

        kernels = {f"{layer.method}/{layer.kernel or 'none'}" for layer in self.layers()}
        return {
            "name": "vllm",
            "version": vllm.__version__,
            "device": "cpu",
            "quantization": self._quantization,
            "path": self._path,
            "ranks": str(self._count),
            **self._told,
            "kernels": ", ".join(sorted(kernels)),
        }

    def begin(self, number: int, version: str) -> None:
        """See `syncguard.protocols.Engine`."""
        self._record = SyncRecord(number, version)
        self._buckets = Path(tempfile.mkdtemp(dir=self._folder.name))
        self._sent: list[tuple[str, list[str]]] = []
        self._began = time.perf_counter()
        if self._path == "transfer":
            self._llm.start_weight_update()
        self._ranks.ask("open_ledger")

    def send(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """See `syncguard.protocols.Engine`."""
        if self._path == "reload":
            self._staged.extend(bucket)
            return
        path, names = write_bucket(bucket, Path(tempfile.mkdtemp(dir=self._buckets)))
        self._sent.append((path, names))
        if self._path == "transfer":
            try:
                self._llm.update_weights({"update_info": {"path": path, "names": names}})
            finally:
                Path(path).unlink()

    def finish(self) -> SyncRecord:
        """See `syncguard.protocols.Engine`."""
        assert self._record is not None, "begin() comes first"  # noqa: S101
        record = self._record
        if self._path == "reload":
            staged, self._staged = self._staged, []
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(staged)})
            self._llm.update_weight_version(record.version)
        elif self._path == "extension":
            self._llm.collective_rpc("syncguard_reload", args=(self._sent,))
            self._llm.update_weight_version(record.version)
        else:
            record.unfolded = [path for paths in self._ranks.ask("unfolded") for path in paths]
            self._llm.finish_weight_update(weight_version=record.version)
        self._close_ledger(record)
        record.served_version = self.version()
        return record

    def _close_ledger(self, record: SyncRecord) -> None:
        shutil.rmtree(self._buckets)
        super()._close_ledger(record)

    def version(self) -> str:
        """The version of the weights that the engine says it serves."""
        return str(self._llm.get_weight_version())

    def seams(self) -> Seams:
        """Where a fault can be armed on the engine's side.

        Raises:
            Unsupported: The model lives in another process.
        """
        if self._away:
            raise Unsupported("faults are armed in this process, and the model is in another one")
        from syncguard.engines.vllm.seams import engine_seams

        return engine_seams(self, self._model, self._worker)

    def abandon(self, error: str) -> SyncRecord:
        """See `syncguard.protocols.Engine`.

        vLLM cannot take a session back. One that an update has broken is closed; one that the
        trainer gives up must be finished before the next can begin.
        """
        assert self._record is not None, "begin() comes first"  # noqa: S101
        record = self._record
        record.error = error
        self._staged = []
        if self._path == "transfer":
            with contextlib.suppress(Exception):  # there may be nothing to finish
                self._llm.finish_weight_update()
        self._close_ledger(record)
        return record

    def quantize_canary(self) -> QuantizedCanary | None:
        """See `syncguard.protocols.Engine`; serialized weights meet no quantizer of vLLM.

        All ranks run the same code, so the first one is asked.
        """
        if self._quantization != "mxfp8":
            return None
        canary: QuantizedCanary | None = self._ranks.ask("quantize_canary")[0]
        return canary

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """See `syncguard.protocols.Engine`."""
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=tokens,
            temperature=1.0,
            seed=seed,
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            prompt_logprobs=0,
        )
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        if self._broken:
            raise Unsupported(self._broken)
        try:
            answers = self._llm.generate(requests, params, use_tqdm=False)
        except BaseException as error:
            # Its scheduler keeps the failed requests and runs them again without end.
            self._broken = (
                "an earlier request ended in an error, after which an engine in process does not "
                f"answer any more ({type(error).__name__}: {error})"
            )
            raise
        results = []
        for answer in answers:
            sampled = answer.outputs[0]
            sequence = [*answer.prompt_token_ids, *sampled.token_ids]
            given = [*(answer.prompt_logprobs or [])[1:], *(sampled.logprobs or [])]
            scores = [
                entry[token].logprob if token in entry else math.nan
                for token, entry in zip(sequence[1:], given, strict=True)
            ]
            results.append((sequence, np.array(scores, np.float64)))
        return results

    def close(self) -> None:
        """End processes of its own, and remove temporary files.

        vLLM's global state in this process goes down with it.
        """
        if self._away:
            with contextlib.suppress(Exception):  # some may have died already
                self._llm.llm_engine.engine_core.shutdown()
        self._folder.cleanup()
