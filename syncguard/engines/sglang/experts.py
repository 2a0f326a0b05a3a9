"""Experts of a live SGLang layer, as its method for a CPU serves them: unquantized, in torch."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch

from syncguard.engines.held import EXPERT_MATRICES

__all__ = ["expert_product", "is_experts"]

_ROWS: Final = 4


def is_experts(module: Any) -> bool:
    """Whether a module stacks experts."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    return isinstance(module, FusedMoE)


def expert_product(
    module: Any, parameter: str, expert: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    """One of the two products of an expert; the activation between them has no weights.

    The method fuses both. It is asked for the expert on a few rows first, and must answer to the
    last bit as the two parameters do: then each of them is what it multiplies with.

    Raises:
        ValueError: It answers otherwise.
    """
    held = SimpleNamespace(**{name: getattr(module, name).data[expert] for name in EXPERT_MATRICES})
    x = _rows(held.w13_weight)
    gate, up = torch.nn.functional.linear(x, held.w13_weight).chunk(2, dim=-1)
    wanted = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, held.w2_weight)
    served = _served(module, expert, x)
    if not torch.equal(served.view(torch.int16), wanted.view(torch.int16)):
        name = type(module.quant_method).__name__
        raise ValueError(f"{name} fuses both products, and not of the parameters as they are")
    matrix: torch.Tensor = getattr(held, parameter)
    return lambda rows: torch.nn.functional.linear(rows, matrix)


def _rows(like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_ROWS, like.shape[-1], generator=generator).to(like.dtype)


def _served(module: Any, expert: int, x: torch.Tensor) -> torch.Tensor:
    """What the live method answers where every row goes to one expert, with weight 1."""
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    chosen = torch.full((len(x), 1), expert, dtype=torch.int32)
    weights = torch.ones(len(x), 1)
    logits = torch.zeros(len(x), len(module.w13_weight))
    dispatched = StandardDispatchOutput(x, None, StandardTopKOutput(weights, chosen, logits))
    served: torch.Tensor = module.quant_method.apply(module, dispatched).hidden_states
    return served
