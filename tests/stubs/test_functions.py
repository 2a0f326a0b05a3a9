"""The functions that learner and engine share, against their definitions."""

import math

import pytest
import torch

from syncguard.grids import dequantize, quantize
from syncguard.stubs.functions import (
    attend,
    fp8_cached,
    on_grid,
    rms_norm,
    rope_table,
    rotate,
    route,
    swiglu,
)


def _draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _tricky() -> list[torch.Tensor]:
    steps = torch.arange(-40, 41, dtype=torch.float32)
    ties = (448 * torch.exp2(steps))[:, None] * _draw(81, 32).clamp(-1, 1)
    ties[:, 0] = 448 * torch.exp2(steps)
    tiny = _draw(4, 32) * 2.0**-120
    zero = torch.cat([torch.zeros(1, 32), _draw(3, 32)])
    special = _draw(3, 32)
    special[0, 3], special[1, 5] = math.inf, math.nan
    return [_draw(7, 96) * 3, ties, tiny, zero, special, torch.zeros(0, 32), -_draw(2, 5, 64)]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_grid_is_the_grid(number: int, dtype: torch.dtype) -> None:
    x = _tricky()[number].to(dtype)
    expected = dequantize(*quantize(x), torch.float32)
    torch.testing.assert_close(on_grid(x), expected, rtol=0, atol=0, equal_nan=True)


def test_rms_norm() -> None:
    x, weight = _draw(3, 8), _draw(8, seed=1)
    expected = torch.nn.functional.rms_norm(x, (8,), weight, eps=1e-6)
    torch.testing.assert_close(rms_norm(x, weight), expected)


def test_rotation_keeps_lengths_and_depends_on_distance() -> None:
    table = rope_table(8)
    x = _draw(1, 1, 1, 8).expand(1, 5, 1, 8)
    turned = rotate(x, table[None, :5])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    products = (turned[0, :, 0] @ turned[0, :, 0].T).diagonal(1)
    torch.testing.assert_close(products, products[:1].expand(4))


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention(heads: int, sinks: bool) -> None:
    q, k, v = _draw(2, 3, heads, 8), _draw(2, 5, 2, 8, seed=1), _draw(2, 5, 2, 4, seed=2)
    mask = torch.arange(5) <= torch.tensor([[0, 2, 3], [1, 2, 3]])[..., None]
    sink = _draw(heads, seed=3) if sinks else None
    k[:, 4], v[:, 4] = math.nan, math.nan  # leftover memory that no token sees
    got = attend(q, k, v, mask, 0.3, sink)
    for batch in range(2):
        for token in range(3):
            for head in range(heads):
                seen = mask[batch, token]
                own = head // (heads // 2)
                scores = k[batch, seen, own] @ q[batch, token, head] * 0.3
                weights = scores.exp()
                total = weights.sum() + (sink[head].exp() if sink is not None else 0)
                expected = (weights / total) @ v[batch, seen, own]
                torch.testing.assert_close(got[batch, token, head], expected)


def test_routing_selects_after_correction_and_shares_before() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    correction = torch.tensor([0.0, 0.0, 10.0])
    scores = torch.sigmoid(logits)[0]
    plain, corrected = route(logits, None, 2)[0], route(logits, correction, 2)[0]
    torch.testing.assert_close(plain, torch.tensor([scores[0], scores[1], 0]) / scores[:2].sum())
    torch.testing.assert_close(
        corrected, torch.tensor([scores[0], 0, scores[2]]) / (scores[0] + scores[2])
    )


def test_swiglu_clamps() -> None:
    gate, up = torch.tensor([9.0, -9.0, 1.0]), torch.tensor([1.0, -9.0, -9.0])
    one, two = torch.tensor([7.0, -9.0, 1.0]), torch.tensor([1.0, -7.0, -7.0])
    silu = torch.nn.functional.silu
    torch.testing.assert_close(swiglu(gate, up), silu(gate) * up)
    torch.testing.assert_close(swiglu(gate, up, torch.tensor([7.0])), silu(one) * two)


def test_fp8_cache_rounds_in_units_of_the_scale() -> None:
    x = torch.tensor([0.0, 0.3, -100.0, 17.0]).requires_grad_()
    scale = torch.tensor([0.02])
    got = fp8_cached(x, scale)
    expected = (x.detach() / 0.02).clamp(-448, 448).to(torch.float8_e4m3fn).float() * 0.02
    torch.testing.assert_close(got.detach(), expected)
    got.backward(torch.ones(4))  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 4
