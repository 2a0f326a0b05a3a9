"""Products of the learner in low precision, with gradients."""

from typing import Any

import torch

__all__ = ["low_precision", "product"]


class _LowPrecision(torch.autograd.Function):
    """``x @ w.T`` on rounded operands; the gradient passes the rounding unchanged."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, w: torch.Tensor, rounded_x: torch.Tensor, rounded_w: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(rounded_x, rounded_w)
        ctx.dtypes = x.dtype, w.dtype
        return torch.matmul(rounded_x, rounded_w.mT)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        x, w = ctx.saved_tensors
        to_x, to_w = ctx.dtypes
        grad_x = torch.matmul(grad, w).to(to_x)
        return grad_x, torch.matmul(grad.mT, x).to(to_w), None, None


def low_precision(
    x: torch.Tensor, w: torch.Tensor, rounded_x: torch.Tensor, rounded_w: torch.Tensor
) -> torch.Tensor:
    """A product whose operands were rounded to a grid.

    Args:
        x: [..., rows, K], what ``rounded_x`` was made from.
        w: [..., N, K], likewise.
        rounded_x: float32, in the shape of ``x``.
        rounded_w: float32, in the shape of ``w``.

    Returns:
        float32 [..., rows, N].
    """
    out: torch.Tensor = _LowPrecision.apply(x, w, rounded_x, rounded_w)  # type: ignore[no-untyped-call]
    return out


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """``x @ w.T`` in float32; ``x`` [..., K], ``w`` [N, K]."""
    return torch.nn.functional.linear(x.float(), w.float())
