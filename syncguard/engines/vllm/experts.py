"""MXFP8 experts for vLLM on a CPU that behave like the native ones.

Like the kernels for Blackwell they round activations to MXFP8, and they read nothing but derived
copies, which are no parameters: elements with gate and up rows interleaved, scales in the 128x4
layout. Both keep the shape or the size of what they are made from, so whoever updates parameters
and not these copies is not told.
"""

from typing import Any, Final

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.quantization.utils.quant_utils import kMxfp8Dynamic, kMxfp8Static

from syncguard.engines.held import EXPERT_MATRICES
from syncguard.engines.vllm.kernel import install, product
from syncguard.grids import swizzle

__all__ = ["CpuMxfp8Experts"]

_DERIVED: Final = ("_shuffled", "_scale_swizzled")
"""What is derived of each, elements and scales, as it is called behind the parameter's name."""


class CpuMxfp8Experts(mk.FusedMoEExpertsModular):  # type: ignore[misc]
    """W8A8 MXFP8 experts on a CPU: exact grids, float32 accumulation."""

    activations = "mxfp8"

    def __init__(self, moe_config: Any, quant_config: Any) -> None:
        super().__init__(moe_config, quant_config)
        # As vLLM's own MXFP8 experts do it. A kernel that reads scales from here reads a copy of
        # the parameters after the first reload, which later writes to these do not reach.
        quant_config._w1.scale = quant_config._w2.scale = None

    @staticmethod
    def activation_format() -> Any:
        """One row a token."""
        return mk.FusedMoEActivationFormat.Standard

    @staticmethod
    def _supports_current_device() -> bool:
        return True

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return (weight_key, activation_key) == (kMxfp8Static, kMxfp8Dynamic)

    @staticmethod
    def _supports_activation(activation: Any) -> bool:
        return bool(activation == MoEActivation.SILU)

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return not moe_parallel_config.use_ep

    @property
    def expects_unquantized_inputs(self) -> bool:
        """Activations are rounded here."""
        return True

    def workspace_shapes(self, M: int, N: int, K: int, *_: Any) -> Any:  # noqa: N803 - vLLM's
        """None but the output."""
        return (0,), (0,), (M, K)

    def finalize_weight_and_reduce_impl(self) -> Any:
        """Nothing is left to be weighted or summed."""
        return TopKWeightAndReduceNoOP()

    def process_weights_after_loading(self, layer: Any) -> None:
        """Derive what the products read."""
        self.layer = layer
        for name, fresh in self.derive(layer).items():
            install(layer, name, fresh)

    def derive(self, layer: Any) -> dict[str, torch.Tensor]:
        """What the derived tensors must hold, from the canonical ones; changes nothing."""
        derived = {}
        for matrix in EXPERT_MATRICES:
            elements = getattr(layer, matrix).data.view(torch.uint8)
            scales = getattr(layer, f"{matrix}_scale").data
            order = _interleaved(elements.shape[1])
            shuffled = elements.index_select(1, order).view(torch.float8_e4m3fn)
            derived[f"{matrix}{_DERIVED[0]}"] = shuffled
            swizzled = [swizzle(one) for one in scales.index_select(1, order)]
            derived[f"{matrix}{_DERIVED[1]}"] = torch.stack(swizzled)
        return derived

    def product(self, layer: Any, matrix: str, expert: int, x: torch.Tensor) -> torch.Tensor:
        """``x @ weight.T`` of one expert, with both operands on the MXFP8 grid.

        Args:
            layer: Whose derived tensors are read.
            matrix: One of `syncguard.engines.held.EXPERT_MATRICES`.
            expert: Its place.
            x: ``[rows, K]`` in the model's dtype.

        Returns:
            ``[rows, N]``, outputs in checkpoint order.
        """
        elements, swizzled = (getattr(layer, f"{matrix}{part}")[expert] for part in _DERIVED)
        return _product(elements, swizzled, x)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Any,
        *_: Any,
        apply_router_weight_on_input: bool = False,
        **__: Any,
    ) -> None:
        """Mix the experts that were chosen for each token, into ``output`` [tokens, H]."""
        del w1, w2, activation  # canonical, and the only one that is supported
        shares = torch.ones_like(topk_weights) if apply_router_weight_on_input else topk_weights
        read = [
            getattr(self.layer, f"{matrix}{part}")
            for matrix in EXPERT_MATRICES
            for part in _DERIVED
        ]
        output.copy_(torch.ops.syncguard.mxfp8_experts(hidden_states, *read, shares, topk_ids))


@torch.library.custom_op("syncguard::mxfp8_experts", mutates_args=())
def _mxfp8_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scales: torch.Tensor,
    w2: torch.Tensor,
    w2_scales: torch.Tensor,
    shares: torch.Tensor,
    chosen: torch.Tensor,
) -> torch.Tensor:
    """All of it as one operator, which a compiler takes as it is."""
    mixed = torch.zeros_like(x, dtype=torch.float32)
    for expert in sorted(set(chosen.flatten().tolist())):
        tokens, choices = torch.where(chosen == expert)
        both = _product(w13[expert], w13_scales[expert], x[tokens])
        inner = both.new_empty(len(tokens), both.shape[1] // 2)
        torch.ops._C.silu_and_mul(inner, both)
        outputs = _product(w2[expert], w2_scales[expert], inner)
        mixed.index_add_(0, tokens, outputs.float() * shares[tokens, choices, None].float())
    return mixed.to(x.dtype)


@_mxfp8_experts.register_fake
def _(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _product(elements: torch.Tensor, swizzled: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same of an expert, whose rows are interleaved; outputs come in checkpoint order."""
    shuffled = product(x, elements, swizzled)
    return torch.empty_like(shuffled).index_copy_(1, _interleaved(len(elements)), shuffled)


def _interleaved(rows: int) -> torch.Tensor:
    """Rows of two halves in turn: of gate and up in ``w13_weight``."""
    return torch.arange(rows).view(2, -1).T.flatten()
