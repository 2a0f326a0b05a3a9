"""The transformer's functions, which learner and engine share as they share a definition.

Each works on plain tensors, computes in float32 and rounds once, to the dtype of its input. So
the order of a sum, which batching and ranks change, seldom shows in the result.
"""

from typing import Final

import torch

from syncguard.grids import dequantize, quantize

__all__ = [
    "ACTIVATION_LIMIT",
    "ROPE_LENGTH",
    "attend",
    "fp8_cached",
    "on_grid",
    "rms_norm",
    "rope_table",
    "rotate",
    "route",
    "swiglu",
]

ACTIVATION_LIMIT: Final = 7.0
"""Largest input of an expert's activation."""

ROPE_LENGTH: Final = 256
"""Positions of a rotary table."""

_EPSILON: Final = 1e-6
_ROPE_BASE: Final = 10_000.0
_FP8_MAX: Final = 448.0

# Bits of float32: maxima from 2^-100 on have scales whose inverse and products are normal numbers,
# and 1.75 is the fraction from which 448 * 2^k would be exceeded.
_LEAST_BITS: Final = (127 - 100) << 23
_INFINITY_BITS: Final = 0x7F800000
_FRACTION_BITS: Final = 0x7FFFFF
_LARGEST_FRACTION: Final = 0x600000


def on_grid(x: torch.Tensor) -> torch.Tensor:
    """Round activations to MXFP8; float32 in the shape of ``x`` [..., K], K a multiple of 32.

    The same values as `syncguard.grids` gives, which takes over where a block's maximum is tiny,
    infinite, NaN or zero; in between this costs less.
    """
    blocks = torch.unflatten(x.float(), -1, (-1, 32))
    bits = blocks.abs().amax(-1, keepdim=True).view(torch.int32)
    if not bits.numel():
        return x.float()
    least, most = bits.aminmax()
    if least < _LEAST_BITS or most >= _INFINITY_BITS:
        return dequantize(*quantize(x), torch.float32)
    exponents = (bits >> 23) - 8 + ((bits & _FRACTION_BITS) > _LARGEST_FRACTION)
    scales = (exponents << 23).view(torch.float32)
    elements = (blocks / scales).to(torch.float8_e4m3fn)
    return torch.mul(elements.float(), scales).view(x.shape)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Scale rows to unit mean square and then by ``weight``; ``x`` [..., H], ``weight`` [H]."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPSILON)
    return (wide * inverse * weight.float()).to(x.dtype)


def rope_table(head_dim: int) -> torch.Tensor:
    """Cosines and sines, float32 [ROPE_LENGTH, head_dim]."""
    half = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    angles = torch.outer(torch.arange(ROPE_LENGTH, dtype=torch.float32), _ROPE_BASE**-half)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions.

    Args:
        x: [batch, tokens, heads, head_dim].
        table: Rows of `rope_table` for the tokens' positions, [batch, tokens, head_dim].
    """
    cos, sin = table[:, :, None].chunk(2, dim=-1)
    one, two = x.float().chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1).to(x.dtype)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax attention with grouped heads.

    Args:
        q: [batch, tokens, heads, width].
        k: [batch, keys, key heads, width].
        v: [batch, keys, key heads, value width].
        mask: Which keys a token sees, bool [batch, tokens, keys].
        scale: Of the scores.
        sinks: [heads]; a score without a value.

    Returns:
        [batch, tokens, heads, value width] in the dtype of ``q``.
    """
    heads, keys = q.shape[2], k.shape[2]
    grouped = torch.unflatten(q.float(), 2, (keys, -1)).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(grouped, k.float().permute(0, 2, 3, 1)[:, :, None]) * scale
    scores = scores.masked_fill(~mask[:, None, None], -torch.inf)
    if sinks is not None:
        column = sinks.float().view(keys, -1, 1, 1).expand(*scores.shape[:4], 1)
        scores = torch.cat([scores, column], dim=-1)
    shares = torch.softmax(scores, dim=-1)[..., : k.shape[1]]
    # A key that no token sees may be leftover memory: a product with zero must not be NaN.
    seen = mask.any(1)[:, :, None, None]
    values = torch.where(seen, v.float(), 0.0).permute(0, 2, 1, 3)[:, :, None]
    mixed = torch.matmul(shares, values).permute(0, 3, 1, 2, 4)
    return mixed.reshape(*q.shape[:2], heads, -1).to(q.dtype)


def fp8_cached(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What comes back from an FP8 cache: ``x`` rounded to E4M3 in units of ``scale`` [1].

    The gradient passes as if nothing had been rounded.
    """
    with torch.no_grad():
        units = (x.float() / scale).clamp(-_FP8_MAX, _FP8_MAX)
        rounded = (units.to(torch.float8_e4m3fn).float() * scale).to(x.dtype)
    return x + (rounded - x).detach() if x.requires_grad else rounded


def route(logits: torch.Tensor, correction: torch.Tensor | None, top_k: int) -> torch.Tensor:
    """Shares of experts: sigmoid scores, selected after correction, normalized.

    Args:
        logits: float32 [tokens, experts].
        correction: float32 [experts], added for the selection only.
        top_k: Experts of a token.

    Returns:
        float32 [tokens, experts], zero where an expert is not selected.
    """
    scores = torch.sigmoid(logits)
    ranking = scores if correction is None else scores + correction
    chosen = ranking.topk(top_k, dim=-1).indices
    shares = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    return shares / shares.sum(-1, keepdim=True)


def swiglu(gate: torch.Tensor, up: torch.Tensor, limit: torch.Tensor | None = None) -> torch.Tensor:
    """``silu(gate) * up``, of clamped inputs if there is a limit [1]."""
    one, two = gate.float(), up.float()
    if limit is not None:
        one, two = one.clamp(max=limit), two.clamp(min=-limit, max=limit)
    return (torch.nn.functional.silu(one) * two).to(gate.dtype)
