"""Experts of a live SGLang layer, as its method serves them: both products in one call."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from syncguard.engines.held import EXPERT_MATRICES
from syncguard.engines.sglang import expert_standins

__all__ = ["expert_product", "is_experts"]

_ROWS: Final = 4

Multiply = Callable[[torch.Tensor], torch.Tensor]


class _Products(NamedTuple):
    """The two products of an expert, read from its parameters, and what is between them."""

    w13_weight: Multiply
    w2_weight: Multiply
    between: Multiply


def is_experts(module: Any) -> bool:
    """Whether a module stacks experts."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    return isinstance(module, FusedMoE)


def expert_product(module: Any, parameter: str, expert: int) -> Multiply:
    """One of the two products of an expert; the activation between them has no weights.

    The method fuses both. It is asked for the expert on a few rows first, and must answer to the
    last bit as the two parameters do: then each of them is what it multiplies with.

    Raises:
        ValueError: It answers otherwise.
    """
    quantized = module.w13_weight.element_size() == 1
    products = (_mxfp8 if quantized else _unquantized)(module, expert)
    x = _rows(module.w13_weight.shape[-1], module.moe_runner_config.params_dtype)
    wanted = products.w2_weight(products.between(products.w13_weight(x)))
    served = _served(module, expert, x)
    if not torch.equal(served.view(torch.int16), wanted.view(torch.int16)):
        name = type(module.quant_method).__name__
        raise ValueError(f"{name} fuses both products, and not of the parameters as they are")
    multiply: Multiply = getattr(products, parameter)
    return multiply


def _unquantized(module: Any, expert: int) -> _Products:
    w13, w2 = (getattr(module, name).data[expert] for name in EXPERT_MATRICES)

    def between(both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    return _Products(
        lambda x: torch.nn.functional.linear(x, w13),
        lambda x: torch.nn.functional.linear(x, w2),
        between,
    )


def _mxfp8(module: Any, expert: int) -> _Products:
    """As the kernel reads them: rows in its own order, which outputs are brought back from."""

    def multiply(name: str) -> Multiply:
        elements = getattr(module, name).data[expert]
        scales = getattr(module, f"{name}_scale_inv").data[expert]
        gated = name == EXPERT_MATRICES[0]
        return lambda x: expert_standins.product(elements, scales, x, gated=gated)

    def between(both: torch.Tensor) -> torch.Tensor:
        up, gate = both.chunk(2, dim=-1)
        return expert_standins.activated(gate, up)

    return _Products(multiply(EXPERT_MATRICES[0]), multiply(EXPERT_MATRICES[1]), between)


def _rows(features: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_ROWS, features, generator=generator).to(dtype)


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
