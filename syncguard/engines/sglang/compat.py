"""What differs between SGLang versions, or has to be tolerated in them, in one place."""

import dataclasses
import functools
import importlib
import inspect
from typing import Any

import torch

__all__ = [
    "extend_to",
    "group_of",
    "has_sessions",
    "initialize_layers",
    "make_forward_batch",
    "make_updater",
    "publish",
    "rank_of",
    "reuse_groups",
    "route_as_on_gpus",
    "route_natively",
    "run_on_cpu",
    "tolerate_rows_of_blocks",
]

_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater"
_FORWARD_BATCH = "sglang.srt.model_executor.forward_batch_info"
_INITIALIZERS = (
    ("sglang.srt.layers.moe", "initialize_moe_config"),
    ("sglang.srt.layers.quantization.fp8_utils", "initialize_fp8_gemm_config"),
    ("sglang.srt.layers.quantization.unquant", "initialize_bf16_gemm_config"),  # from 0.5.22
    ("sglang.srt.layers.quantization.fp4_utils", "initialize_fp4_gemm_config"),
)


def publish(arguments: Any) -> None:
    """Make a configuration that of the process, for rank 0 of one."""
    context = importlib.import_module("sglang.srt.runtime_context")
    if not hasattr(context, "spawn_world_rank"):  # until 0.5.20
        context.publish(arguments, role="scheduler")
        return
    rank = context.spawn_world_rank(arguments, tp_rank=0, pp_rank=0)
    ranks = context.SpawnRanks(world_rank=rank, gpu_id=0)
    context.publish(arguments, role="scheduler", ranks=ranks)


def rank_of(runner: Any) -> int:
    """The tensor-parallel rank of a model runner."""
    if hasattr(runner, "tp_rank"):
        return int(runner.tp_rank)
    return int(importlib.import_module("sglang.srt.runtime_context").get_parallel().tp_rank)


def reuse_groups() -> None:
    """Let a second engine of this process use what the first has set up for all of it."""
    bootstrap: Any = importlib.import_module("sglang.srt.distributed.bootstrap")
    if getattr(bootstrap, "_PARALLEL_INITIALISED", False):
        bootstrap.init_parallel_runtime = lambda **_: None
    context = importlib.import_module("sglang.srt.runtime_context")
    if hasattr(context, "get_resources"):
        # Where the first one's experts are; SGLang takes it for a mistake to find it there.
        context.get_resources().expert_location_metadata = None


def initialize_layers() -> None:
    """Set up the choices of kernels that layers ask for when they are built."""
    for module, name in _INITIALIZERS:
        initialize = getattr(importlib.import_module(module), name, None)
        if initialize is not None:
            initialize()


def has_sessions() -> bool:
    """Whether an update is a session that begins and ends, as from 0.5.21 on."""
    return hasattr(
        importlib.import_module(_MANAGER).SchedulerWeightUpdaterManager, "begin_weight_update"
    )


def group_of(layer: Any) -> tuple[int, int]:
    """The tensor-parallel rank of a linear layer, and how many share it."""
    if hasattr(layer, "tp_size"):  # until 0.5.22
        return layer.tp_rank, layer.tp_size
    distributed: Any = importlib.import_module("sglang.srt.distributed.utils")
    rank, ranks = distributed.get_group_rank_size(layer.tp_group)
    return int(rank), int(ranks)


def extend_to(request: Any, end: int) -> None:
    """Let the prefill of a request go from its first token to one."""
    if hasattr(request, "set_extend_range"):  # until 0.5.22
        request.set_extend_range(0, end)
    else:
        request.extend_end = end


def make_forward_batch(batch: Any, runner: Any) -> Any:
    """What a runner's forward takes, made of a batch of requests."""
    make = importlib.import_module(_FORWARD_BATCH).ForwardBatch.init_new
    option = "return_hidden_states_before_norm"  # from 0.5.21
    given = {option: False} if option in inspect.signature(make).parameters else {}
    return make(batch, runner, **given)


def make_updater(worker: Any, scheduler: Any, cpu_group: Any) -> Any:
    """SGLang's own manager of weight updates around a worker, with nothing else of a scheduler."""
    manager = importlib.import_module(_MANAGER).SchedulerWeightUpdaterManager
    fields = {field.name for field in dataclasses.fields(manager) if field.init}
    given = {"tp_cpu_group": cpu_group} if "tp_cpu_group" in fields else {}
    return manager(
        tp_worker=worker,
        draft_worker=None,
        memory_saver_adapter=None,
        flush_cache=lambda **_: True,  # no request lives between two calls of `generate`
        is_fully_idle=lambda **_: True,
        scheduler=scheduler,
        **given,
    )


@functools.cache
def route_as_on_gpus() -> None:
    """Give kernels the numbers of experts as int32; routers in torch make int64 of them."""
    runner: Any = importlib.import_module("sglang.srt.layers.moe.moe_runner.flashinfer_trtllm")
    original = runner._get_routing_for_flashinfer_routed

    @functools.wraps(original)
    def routing(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        return (made[0].int(), made[1]) if isinstance(made, tuple) else made

    runner._get_routing_for_flashinfer_routed = routing


def route_natively() -> None:
    """Let tokens be routed to experts on a CPU without AMX.

    SGLang takes the function for GPUs there, whose kernel it skips: what it returns is memory as
    it was found, without an error. Its own function in torch knows fewer arguments.
    """
    topk: Any = importlib.import_module("sglang.srt.layers.moe.topk")
    native = topk.fused_topk_torch_native
    known = inspect.signature(native).parameters

    def fused_topk(**given: Any) -> Any:
        return native(**{name: value for name, value in given.items() if name in known})

    topk.fused_topk = fused_topk


@functools.cache
def run_on_cpu(module: str, name: str) -> None:
    """Let an operator that SGLang registers for GPUs only run on a CPU, as SGLang wrote it.

    Args:
        module: Where SGLang defines it.
        name: Of the function, and of the operator.
    """
    function = inspect.unwrap(getattr(importlib.import_module(module), name))
    torch.library.impl(f"sglang::{name}", "CPU", function)


def tolerate_rows_of_blocks() -> None:
    """Let a model load on a CPU whose blocks are not square.

    SGLang pads heads for tensor parallelism on CPUs and asserts square blocks for it first, even
    where there is nothing to pad.
    """
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner")
    runner.adjust_config_with_unaligned_cpu_tp = lambda model_config, *_, **__: model_config
