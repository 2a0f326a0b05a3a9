"""The adapter of a live vLLM engine."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.buckets import write_bucket
from syncguard.engines.calls import call_seams
from syncguard.engines.ranked import Generate, RankedEngine
from syncguard.engines.ranks import AllRanks, Ranks
from syncguard.engines.sockets import lasting_folder, socket_folder
from syncguard.engines.starting import temporary_files_in
from syncguard.engines.vllm.launch import (
    EXCLUDED,
    ONE_RANK,
    QUANTIZATIONS,
    WIRES,
    engine_arguments,
    start,
)
from syncguard.engines.vllm.output import output_of_workers
from syncguard.engines.vllm.replica import LibraryReplica, Replica, Scored
from syncguard.engines.vllm.served import ServedReplica
from syncguard.errors import UsageError
from syncguard.observations import QuantizedCanary, SyncRecord
from syncguard.seams import Seam, Seams

__all__ = ["PATHS", "VllmEngine"]

PATHS: Final = ("transfer", "reload", "extension")
"""How a sync reaches vLLM: its weight-update lifecycle, ``reload_weights`` with tensors, or the
same called by an extension of its workers, which reads files."""

PROCESSES: Final = ("in", "own", "server")
"""Where vLLM runs: in this process, in one of its own, or as the HTTP server that it brings."""


class VllmEngine(RankedEngine):
    """A live vLLM on a CPU, or several that serve the same policy.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `syncguard.engines.vllm.launch.QUANTIZATIONS`.
        exclude: Modules that are left unquantized where the configuration names them; by default
            those in `syncguard.engines.vllm.launch.EXCLUDED`.
        path: One of `PATHS`; ``reload`` does not lead to other processes.
        load_format: vLLM's; ``dummy`` starts on random weights.
        seed: Of vLLM.
        ranks: Tensor-parallel ranks of each replica; several have a process each.
        replicas: How many vLLMs there are: each sync goes to all, requests to one by turns. Their
            ranks are numbered on, and what each holds of a weight is a copy of its own.
        process: One of `PROCESSES`.
        compiled: Whether its model is compiled.
        folded: Whether the compiler folds weights into its code as constants.
        draft: Folder of the checkpoint of a model that drafts tokens for it. Syncs go to the main
            model alone, as vLLM's do that are not told to go to the draft.

    Raises:
        UsageError: An argument is none of those, or vLLM does not start.
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
        replicas: int = 1,
        process: str = "in",
        compiled: bool = False,
        folded: bool = False,
        draft: Path | None = None,
    ) -> None:
        _require("sync path", path, PATHS)
        _require("quantization", quantization, QUANTIZATIONS)
        _require("process", process, PROCESSES)
        self._away = ranks > 1 or process != "in"
        if self._away and path == "reload":
            raise UsageError(
                "path 'reload' hands over tensors, which cannot cross to other processes\n"
                "  what to do: take path 'transfer' or 'extension'"
            )
        if ranks > 1 and quantization in ONE_RANK:
            raise UsageError(
                f"quantization {quantization!r} runs on one rank: ranks that cut a layer's inputs "
                f"hold the same scales, which cannot be told apart\n"
                f"  expected: --tp 1, got {ranks}\n"
                "  what to do: take one rank, or quantization 'modelopt-mxfp8'"
            )
        if folded and not compiled:
            raise UsageError(
                "weights are folded into compiled code, and nothing is compiled\n"
                "  what to do: add --compile, or leave --fold out"
            )
        self._folded = folded
        self._path = path
        self._quantization = quantization
        self._ranks_each, self._count = ranks, ranks * replicas
        self._record: SyncRecord | None = None
        self._staged: list[tuple[str, torch.Tensor]] = []
        self._told = {"process": process, "compiled": "folded" if folded else str(compiled).lower()}
        self._told |= {"draft": draft.name} if draft else {}
        self._folder = tempfile.TemporaryDirectory(prefix="syncguard-vllm-")
        self._sockets = socket_folder() if self._away else lasting_folder()
        arguments = engine_arguments(
            checkpoint,
            quantization,
            exclude=EXCLUDED[quantization] if exclude is None else exclude,
            load_format=load_format,
            seed=seed,
            ranks=ranks,
            compiled=compiled,
            draft=draft,
        )
        self._replicas: list[Replica] = []
        try:
            for first in range(0, self._count, ranks):
                self._replicas.append(self._start(arguments, process, first))
            self._observe_by(AllRanks([replica.ranks for replica in self._replicas]))
        except BaseException:
            self.close()
            raise

    def _start(self, arguments: Mapping[str, Any], process: str, first: int) -> Replica:
        """Start the replica whose first rank has a number."""
        folder = Path(self._folder.name)
        if process == "server":
            return ServedReplica(
                arguments,
                folder,
                Path(self._sockets.name),
                first=first,
                world=self._count,
                folded=self._folded,
            )
        with contextlib.ExitStack() as starting:
            starting.enter_context(temporary_files_in(self._sockets.name))
            if self._away:
                log = folder / f"workers{first}.log"
                starting.enter_context(output_of_workers(log))
            llm = start(arguments, process=process, folded=self._folded)
        if not self._away and self._count > 1:
            from syncguard.engines.vllm.compat import forget_rotary_tables

            forget_rotary_tables()
        ranks = self._ranks_each
        return LibraryReplica(llm, away=self._away, count=ranks, first=first, world=self._count)

    @property
    def wire(self) -> str:
        """See `syncguard.protocols.Engine`."""
        return WIRES.get(self._quantization, "bf16")

    def environment(self) -> Mapping[str, str]:
        """Engine, versions and the kernels in use."""
        kernels = {f"{layer.method}/{layer.kernel or 'none'}" for layer in self.layers()}
        return {
            "name": "vllm",
            "version": self._replicas[0].release(),
            "device": "cpu",
            "quantization": self._quantization,
            "path": self._path,
            "ranks": str(self._ranks_each),
            **({"replicas": str(len(self._replicas))} if len(self._replicas) > 1 else {}),
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
            for replica in self._replicas:
                replica.start_update()
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
                for replica in self._replicas:
                    replica.update(path, names)
            finally:
                Path(path).unlink()

    def finish(self) -> SyncRecord:
        """See `syncguard.protocols.Engine`."""
        assert self._record is not None, "begin() comes first"  # noqa: S101
        record = self._record
        if self._path == "transfer":
            record.unfolded = [path for paths in self._ranks.ask("unfolded") for path in paths]
            for replica in self._replicas:
                replica.finish_update(record.version)
        else:
            staged, self._staged = self._staged, []
            for replica in self._replicas:
                if self._path == "reload":
                    replica.reload(staged)
                else:
                    replica.reload_files(self._sent)
                replica.publish(record.version)
        self._close_ledger(record)
        record.served_version = self.version()
        return record

    def _close_ledger(self, record: SyncRecord) -> None:
        shutil.rmtree(self._buckets)
        super()._close_ledger(record)

    def version(self) -> str:
        """The version of the weights that it says it serves; of replicas that differ all."""
        told = dict.fromkeys(replica.version() for replica in self._replicas)
        return ", ".join(told)

    def seams(self) -> Seams:
        """Where a fault can be armed in this process; of replicas, what is sent to each."""
        calls = call_seams(self)
        if len(self._replicas) > 1:
            return {**calls, "receive": self._receiving()}
        return calls if self._away else {**calls, **self._only.ranks.ask("seams")[0]}

    def ranks_apart(self) -> bool:
        """See `syncguard.protocols.EngineExtras`."""
        return self._away and len(self._replicas) == 1

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
            for replica in self._replicas:
                with contextlib.suppress(Exception):  # there may be nothing to finish
                    replica.finish_update()
        self._close_ledger(record)
        return record

    def _answering(self) -> list[tuple[Ranks, Generate]]:
        return [(replica.ranks, replica.generate) for replica in self._replicas]

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
        """See `syncguard.protocols.Engine`; replicas take turns at prompts."""
        results: dict[int, Scored] = {}
        for number, replica in enumerate(self._replicas):
            rows = range(number, len(prompts), len(self._replicas))
            if rows:
                answers = replica.generate([prompts[row] for row in rows], tokens, seed)
                results.update(zip(rows, answers, strict=True))
        return [results[row] for row in range(len(prompts))]

    def sleep(self, level: int = 1) -> None:
        """Take no requests until `wake`, and give memory up where vLLM can; on a CPU it cannot."""
        for replica in self._replicas:
            replica.sleep(level)

    def wake(self) -> None:
        """Take requests again."""
        for replica in self._replicas:
            replica.wake()

    def close(self) -> None:
        """End processes of its own, and remove temporary files.

        vLLM's global state in this process goes down with it.
        """
        for replica in self._replicas:
            replica.close()
        self._folder.cleanup()
        if self._away:
            self._sockets.cleanup()

    def _receiving(self) -> dict[str, Seam]:
        """By the first rank of each replica: it takes a bucket."""
        firsts = range(0, self._count, self._ranks_each)
        named = zip(firsts, self._replicas, strict=True)
        return {f"rank{first}": Seam(replica, "update") for first, replica in named}

    @property
    def _only(self) -> Any:
        """The replica whose model is in this process."""
        return self._replicas[0]

    @property
    def _llm(self) -> Any:
        return self._only.llm

    @property
    def _model(self) -> Any:
        return self._only.worker.model_runner.model


def _require(what: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        raise UsageError(f"unknown {what} {given!r}; known: {', '.join(known)}")
