"""What differs between vLLM versions, or has to be tolerated in them, in one place."""

import functools
from collections.abc import Mapping
from typing import Any

__all__ = [
    "add_expert_group",
    "choose_experts",
    "forget_rotary_tables",
    "tolerate_llvmlite",
]


def choose_experts() -> None:
    """Let MXFP8 experts on a CPU be ours; safe to call again.

    vLLM 0.32 has no registry for experts. On a CPU it chooses its emulation, which it looks up by
    name when a layer is built, and whose first forward ends in an error of Triton. Of unquantized
    experts it asks for post-processing, of those in MXFP8 it does not: here it does.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.fused_moe.experts import mxfp8_emulation_moe
    from vllm.model_executor.layers.quantization.modelopt import ModelOptMxFp8FusedMoE
    from vllm.model_executor.layers.quantization.online.mxfp8 import Mxfp8OnlineMoEMethod

    from syncguard.engines.vllm.experts import CpuMxfp8Experts

    _route_on_cpu()
    mxfp8_emulation_moe.Mxfp8EmulationTritonExperts = CpuMxfp8Experts
    methods: tuple[Any, ...] = (Mxfp8OnlineMoEMethod, ModelOptMxFp8FusedMoE)
    for method in methods:
        _post_process_experts(method, CpuMxfp8Experts)


def add_expert_group() -> None:
    """Let a mixture of experts start in a process where a dense model did before.

    vLLM 0.32 makes its process groups with the first engine of a process, and the one for experts
    only if that engine has some.
    """
    from vllm.distributed import parallel_state

    if parallel_state._EP is None:
        world = parallel_state.get_world_group()
        parallel_state._EP = parallel_state.init_model_parallel_group(
            [world.ranks],
            world.local_rank,
            parallel_state.torch.distributed.get_backend(world.device_group),
            group_name="ep",
        )


def _route_on_cpu() -> None:
    """Let routers choose experts, and these have room for their results.

    vLLM 0.29 has no router for a CPU, and asks an operator for it that only its CUDA build has;
    its experts take their results' memory from a manager that its CPU worker does not set up.
    """
    from importlib.util import find_spec

    import torch
    from vllm import _custom_ops
    from vllm.model_executor.layers.fused_moe import router
    from vllm.v1.worker import workspace

    if find_spec(f"{router.__name__}.cpu_router"):
        return
    _custom_ops.topk_softmax = _topk_softmax
    if not workspace.is_workspace_manager_initialized():
        workspace.init_workspace_manager(torch.device("cpu"))


def _topk_softmax(
    weights: Any,
    ids: Any,
    token_expert_indices: Any,
    gating: Any,
    renormalize: bool = False,
    bias: Any = None,
    is_padding: Any = None,
) -> None:
    """Write the weights and numbers of each token's best experts, as vLLM's operator does."""
    if is_padding is not None:
        raise NotImplementedError("tokens of padding are routed like others here")
    scores = gating.float().softmax(-1)
    best = (scores if bias is None else scores + bias).topk(ids.shape[1], dim=-1).indices
    chosen = scores.gather(1, best)
    weights.copy_(chosen / chosen.sum(-1, keepdim=True) if renormalize else chosen)
    ids.copy_(best)
    del token_expert_indices  # of no use to experts on a CPU


def forget_rotary_tables() -> None:
    """Let the next engine of this process have rotary tables of its own.

    vLLM keeps them by their sizes, so engines of a process share them, as replicas never do.
    """
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    _ROPE_DICT.clear()


def _post_process_experts(method: Any, ours: Any) -> None:
    original = method.process_weights_after_loading
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        original(self, layer)
        experts = getattr(self.moe_kernel, "fused_experts", None)
        if isinstance(experts, ours):
            experts.process_weights_after_loading(layer)

    method.process_weights_after_loading = process_weights_after_loading


def tolerate_llvmlite() -> None:
    """Let an engine start in a process that has used numba.

    On a CPU vLLM 0.32 scans every module of the process for Triton kernels and takes any
    ``__dict__`` for a dictionary. llvmlite's library object answers each attribute name, this one
    too, with a function, and the scan dies with an AttributeError.
    """
    try:
        from vllm.triton_utils import dispatcher
    except ImportError:  # up to 0.30 nothing is scanned
        return

    def plain_vars(value: Any) -> Mapping[str, Any]:
        try:
            held: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
        except AttributeError:
            held = {}
        return held

    dispatcher.vars = plain_vars
