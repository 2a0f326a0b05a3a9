"""How the learner uses its weights: which modules stay in its dtype, and what a forward does."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from syncguard.stubs.functions import on_grid
from syncguard.stubs.products import low_precision, product
from syncguard.stubs.topology import Topology

__all__ = ["Recipe", "Use", "UsedGrid"]


class Recipe:
    """Which modules the learner keeps in its dtype.

    Args:
        topology: Of the model.
    """

    def __init__(self, topology: Topology) -> None:
        self.quantization = topology.quantization

    def is_excluded(self, module: str) -> bool:
        """Whether a module stays in the model's dtype.

        Args:
            module: Its name in checkpoint layout, such as ``model.layers.0.mlp.gate_proj``.
        """
        kept = r"(.*\.embed_tokens|lm_head|.*\.mlp\.gate)"
        return self.quantization == "none" or re.fullmatch(kept, module) is not None


@dataclass(frozen=True, slots=True, eq=False)
class UsedGrid:
    """The grid of one weight, and its values in float32."""

    elements: torch.Tensor
    scales: torch.Tensor
    values: torch.Tensor


@dataclass(slots=True)
class Use:
    """How one forward uses the weights; see `syncguard.stubs.policy.Weights`.

    Attributes:
        plain: The weights in the model's dtype.
        quantized: The grids of the weights that are used in low precision.
        dtype: Of the forward.
        rounds: Whether activations of low-precision products are rounded too.
        used: Names of weights that the forward used so far.
    """

    plain: Mapping[str, torch.Tensor]
    quantized: Mapping[str, UsedGrid]
    dtype: torch.dtype
    rounds: bool
    used: set[str] = field(default_factory=set)

    def value(self, name: str) -> torch.Tensor:
        """See `syncguard.stubs.policy.Weights`."""
        grid = self.quantized.get(name)
        self.used.add(name)
        if grid is None:
            plain = self.plain[name]
            return plain.to(self.dtype) if plain.dtype == torch.bfloat16 else plain
        plain = self.plain[name]
        values = grid.values.to(self.dtype)
        # The gradient passes the rounding unchanged.
        return plain + (values - plain).detach() if plain.requires_grad else values

    def product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """See `syncguard.stubs.policy.Weights`."""
        grid = self.quantized.get(name)
        if grid is None or not self.rounds:
            return product(x, self.value(name))
        self.used.add(name)
        rows = x.flatten(0, -2)
        rounded = on_grid(rows.detach())
        if not torch.is_grad_enabled():
            out = torch.nn.functional.linear(rounded, grid.values)
        else:
            out = low_precision(rows, self.plain[name], rounded, grid.values)
        return torch.unflatten(out, 0, x.shape[:-1])

    def products(self, x: torch.Tensor, names: list[str]) -> torch.Tensor:
        """See `syncguard.stubs.policy.Weights`."""
        grids = [self.quantized.get(name) for name in names]
        held = [grid for grid in grids if grid is not None]
        if len(held) < len(names) or not self.rounds:
            return torch.stack(
                [self.product(part, name) for part, name in zip(x, names, strict=True)]
            )
        self.used.update(names)
        values, rounded = torch.stack([grid.values for grid in held]), on_grid(x.detach())
        if not torch.is_grad_enabled():
            return torch.matmul(rounded, values.mT)
        plain = torch.stack([self.plain[name] for name in names])
        return low_precision(x, plain, rounded, values)
