"""Experts of a mixture as linear layers of their own, as checkpoints name them.

transformers stacks the experts of a layer into two tensors with three dimensions, which no
checkpoint holds. Taken apart, each expert's matrices are parameters like any other: they quantize,
train, travel and are observed one by one.
"""

from typing import Any, Final

import torch
from torch import nn

__all__ = ["Experts", "take_apart"]

_GROUP: Final = 32
"""Rows of an expert's group are a multiple of this: MXFP8 gradients of weights have such blocks."""

_STACKED: Final = ("down_proj", "gate_up_proj")


class Experts(nn.ModuleList):
    """The experts of one layer; takes the place of a transformers module that stacks them.

    Each expert multiplies its own tokens, padded with zeros to whole blocks as grouped kernels do
    it. An expert without tokens multiplies one block of zeros: so each forward uses, and shows,
    the grid of every expert.

    Args:
        stacked: The module to take apart, with ``gate_up_proj`` [experts, 2 I, H], ``down_proj``
            [experts, H, I] and ``act_fn``.
    """

    def __init__(self, stacked: Any) -> None:
        pairs = zip(stacked.gate_up_proj.detach(), stacked.down_proj.detach(), strict=True)
        super().__init__(_Expert(both, down, stacked.act_fn) for both, down in pairs)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Mix the experts that were chosen for each token.

        Args:
            hidden_states: [tokens, H].
            top_k_index: Experts of a token, int64 [tokens, k].
            top_k_weights: Their shares, [tokens, k].

        Returns:
            [tokens, H] in the dtype of ``hidden_states``.
        """
        mixed = torch.zeros_like(hidden_states)
        for number, expert in enumerate(self):
            tokens, choices = torch.where(top_k_index == number)
            count = len(tokens)
            rows = hidden_states.new_zeros(max(1, -(-count // _GROUP)) * _GROUP, mixed.shape[1])
            outputs = expert(rows.index_copy(0, torch.arange(count), hidden_states[tokens]))
            shares = top_k_weights[tokens, choices, None]
            mixed = mixed.index_add(0, tokens, (outputs[:count] * shares).to(mixed.dtype))
        return mixed


class _Expert(nn.Module):
    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, activation: Any) -> None:
        super().__init__()
        gate, up = gate_up.chunk(2)
        self.gate_proj, self.up_proj, self.down_proj = _linear(gate), _linear(up), _linear(down)
        self.act_fn = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return product


def take_apart(model: nn.Module) -> None:
    """Replace every module that stacks plain gated experts; others stay as they are."""
    for path, module in list(model.named_modules()):
        if _is_stack(module):
            model.set_submodule(path, Experts(module))


def _is_stack(module: nn.Module) -> bool:
    stacked = tuple(sorted(module._parameters))
    gated = getattr(module, "has_gate", False) and getattr(module, "is_concatenated", False)
    return stacked == _STACKED and bool(gated) and not getattr(module, "is_transposed", True)


def _linear(weight: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.clone())
    return layer
