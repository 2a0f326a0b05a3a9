"""Starts SGLang's model runner in this process, on a CPU."""

import importlib
import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from syncguard._libraries import quiet
from syncguard.engines.sglang.expert_standins import KERNEL
from syncguard.engines.sglang.fakes import importing
from syncguard.engines.sglang.standins import SMALLEST
from syncguard.engines.starting import quiet_collector
from syncguard.errors import UsageError
from syncguard.models import expert_count

__all__ = [
    "CUSTOM_LOADER",
    "QUANTIZATIONS",
    "engine_arguments",
    "equip",
    "has_experts",
    "import_engine",
    "require_engine",
    "require_widths",
    "start_runner",
]

CUSTOM_LOADER: Final = "syncguard.engines.sglang.loading.load"
"""The custom weight loader that SGLang is told of."""

_SERIALIZED: Final = MappingProxyType(
    {"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]}
)

QUANTIZATIONS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "none": MappingProxyType({}),
        "mxfp8": MappingProxyType({"serialized": _SERIALIZED}),
        "mxfp8-trtllm": MappingProxyType({"serialized": _SERIALIZED, "backend": "trtllm"}),
        "mxfp8-online": MappingProxyType({"quantization": "mxfp8"}),
    }
)
"""How SGLang holds weights: in bf16, as a checkpoint in MXFP8, or quantized by itself.

Kernels are CUTLASS's, or TRT-LLM's, which keep weights in an order of their own.
"""

_ENVIRONMENT: Final = {
    "SGLANG_USE_CPU_ENGINE": "1",  # read once, when SGLang is imported
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}
_DEFAULTS: Final = {"TORCHDYNAMO_DISABLE": "1"}
_TOKENS: Final = 256
_REQUESTS: Final = 16


def import_engine() -> None:
    """Import SGLang, for a CPU: what it reads of the environment, it reads only then.

    Raises:
        ImportError: It cannot be imported.
    """
    os.environ.update(_ENVIRONMENT)
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("sglang").setLevel(logging.ERROR)  # it warns of each model it cannot import
    with quiet(), quiet_collector(), importing():
        importlib.import_module("sglang.benchmark.one_batch")


def start_runner(
    checkpoint: Path, quantization: str, exclude: Sequence[str], load_format: str, seed: int
) -> Any:
    """Start a model runner; the process can hold one at a time.

    Args:
        checkpoint: Folder of a checkpoint.
        quantization: One of `QUANTIZATIONS`.
        exclude: Linear layers that are left unquantized where the configuration names them.
        load_format: SGLang's; ``dummy`` starts on random weights.
        seed: Of SGLang.

    Raises:
        UsageError: SGLang cannot be imported.
    """
    require_engine()
    with quiet(), quiet_collector(), importing():
        from sglang.benchmark import one_batch
        from sglang.srt.server_args import PortArgs, ServerArgs

        from syncguard.engines.sglang import compat

        equip(quantization, experts=has_experts(checkpoint))
        told = engine_arguments(checkpoint, quantization, exclude, load_format, seed)
        arguments = ServerArgs(**told)
        getattr(arguments, "resolve_once", lambda: None)()
        compat.publish(arguments)
        compat.reuse_groups()
        compat.initialize_layers()
        one_batch.get_tokenizer = lambda *_, **__: None
        one_batch.print = lambda *_, **__: None  # it tells the size of its cache
        runner, _ = one_batch.load_model(arguments, PortArgs.init_new(arguments), 0, 0)
        return getattr(runner, "torch_runner", runner)


def require_widths(checkpoint: Path, quantization: str, ranks: int) -> None:
    """Refuse a model of which a rank would hold less than the MXFP8 kernels multiply.

    Raises:
        UsageError: It would.
    """
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    widths = {"o_proj": heads * head // ranks, "down_proj": config["intermediate_size"] // ranks}
    small = {name: width for name, width in widths.items() if width < SMALLEST}
    if quantization != "none" and ranks > 1 and small:
        name, width = next(iter(small.items()))
        raise UsageError(
            f"the MXFP8 kernels refuse what each of {ranks} ranks would hold of {name}\n"
            f"  expected: at least {SMALLEST} columns\n"
            f"  got: {width}\n"
            "  what to do: take a wider model, such as tiny-qwen3-wide or tiny-qwen3-moe-wide, or "
            "fewer ranks"
        )


def require_engine() -> None:
    """Import SGLang.

    Raises:
        UsageError: It cannot be imported.
    """
    try:
        import_engine()
    except ImportError as error:
        raise UsageError(
            "SGLang cannot be imported\n"
            f"  got: {error}\n"
            "  what to do: on a CPU install it from the lock file, without dependency "
            "resolution (see the README)"
        ) from error


def equip(quantization: str, *, experts: bool = False) -> None:
    """Give the imported SGLang of this process what a quantization needs on a CPU.

    Args:
        quantization: One of `QUANTIZATIONS`.
        experts: Whether the model has some.
    """
    from syncguard.engines.sglang import compat, expert_standins, standins

    compat.route_natively()
    if quantization != "none":
        standins.install(QUANTIZATIONS[quantization].get("backend", "cutlass"))
        if experts:
            expert_standins.install()
        compat.tolerate_rows_of_blocks()


def engine_arguments(
    checkpoint: Path, quantization: str, exclude: Sequence[str], load_format: str, seed: int
) -> dict[str, Any]:
    """SGLang's arguments for a small engine on a CPU; see `start_runner`."""
    told = dict(QUANTIZATIONS[quantization])
    override: dict[str, Any] = {}
    told.pop("backend", None)
    if serialized := told.pop("serialized", None):
        override["quantization_config"] = {**serialized, "ignored_layers": list(exclude)}
    if quantization != "none" and has_experts(checkpoint):
        told["moe_runner_backend"] = KERNEL
    return {
        **told,
        "model_path": str(checkpoint),
        "json_model_override_args": json.dumps(override),
        "load_format": load_format,
        "device": "cpu",
        "dtype": "bfloat16",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "skip_tokenizer_init": True,
        "max_total_tokens": _TOKENS * _REQUESTS,
        "max_running_requests": _REQUESTS,
        "mem_fraction_static": 0.05,
        "context_length": _TOKENS,
        "disable_cuda_graph": True,
        "disable_radix_cache": True,
        "disable_overlap_schedule": True,
        "custom_weight_loader": [CUSTOM_LOADER],
        "nccl_port": _free_port(),
        "random_seed": seed,
        "log_level": "error",
    }


def has_experts(checkpoint: Path) -> bool:
    """Whether the model of a checkpoint is a mixture."""
    config: dict[str, Any] = json.loads((checkpoint / "config.json").read_text())
    return expert_count(config) > 0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
