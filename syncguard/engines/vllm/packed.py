"""Probes of vLLM's unquantized experts on a CPU, whose fused kernel reads packed matrices.

One call of that kernel multiplies with gate and up, applies the activation, and multiplies with
down. To see one of the three matrices as the kernel reads it, the live bytes of that matrix are
given to it beside matrices of our own, through which everything passes exactly:

- The activation, ``silu(g) * u``, is ``g * u`` in float32 as soon as g is about 20: the sigmoid is
  1 then. So a gate of our own gives each row a large known g, and the result is divided by it.
- The other product is one with the identity.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["packed_product"]

_LARGE: Final = 128.0
"""Weight of our gates, a power of two: a row whose sum is 0.25 already has a g of 32."""

_LEAST_SUM: Final = 0.25
_SPARE: Final = 32
"""Columns beside the identity; the kernel wants whole blocks."""

Serve = Callable[[torch.Tensor], torch.Tensor]


def packed_product(experts: Any, layer: Any, matrix: str, expert: int) -> Serve:
    """The product with one matrix of one expert, as the fused kernel computes it.

    Args:
        experts: vLLM's experts object, whose kernel is asked.
        layer: The vLLM layer, whose packed matrices are read.
        matrix: ``w13_weight`` or ``w2_weight``.
        expert: Its place.

    Returns:
        Maps ``[rows, K]`` to ``[rows, N]``; of ``w13_weight`` N are gate's outputs, then up's.
    """
    live = getattr(layer, matrix).data[expert : expert + 1]
    if matrix == "w2_weight":
        return lambda x: _down(experts.isa, live, x)
    halves = live.chunk(2, dim=1)
    return lambda x: torch.cat([_half(experts.isa, half, x) for half in halves], dim=1)


def _down(isa: str, live: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Rows pass through gate and up unchanged: g is that of a column of ones, u is x over it."""
    inner = x.shape[1]
    both = x.new_zeros(2 * inner, inner + _SPARE)
    both[:inner, inner] = _LARGE
    both[inner:, :inner] = torch.eye(inner, dtype=x.dtype) / _LARGE
    rows = torch.cat([x, x.new_ones(len(x), 1), x.new_zeros(len(x), _SPARE - 1)], dim=1)
    return _fused(isa, rows, _packed(isa, both), live)


def _half(isa: str, live: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``x`` times gate or up, which stands in the place of up."""
    outputs = live.shape[1]
    signs = torch.where(x.float().sum(0) < 0, -1.0, 1.0).to(x.dtype)
    sums = x.float() @ signs.float()
    if len(x) > 1 and sums.min() < _LEAST_SUM:
        return torch.cat([_half(isa, live, part) for part in x.tensor_split(2)])
    gate = _packed(isa, (signs * _LARGE).expand(outputs, -1).contiguous())
    identity = _packed(isa, torch.eye(outputs, dtype=x.dtype))
    out = _fused(isa, x, torch.cat([gate, live], dim=1), identity)
    return (out.float() / (_LARGE * sums[:, None])).to(x.dtype)


def _fused(isa: str, x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    from vllm import _custom_ops

    out = x.new_empty(len(x), w2.shape[1])
    shares, choices = torch.ones(len(x), 1), torch.zeros(len(x), 1, dtype=torch.int32)
    _custom_ops.cpu_fused_moe(
        out, x.contiguous(), w13.contiguous(), w2, None, None, shares, choices, "silu", isa
    )
    return out


def _packed(isa: str, weight: torch.Tensor) -> torch.Tensor:
    from vllm import _custom_ops

    packed: torch.Tensor = _custom_ops.cpu_prepack_moe_weight(weight[None].contiguous(), isa)
    return packed
