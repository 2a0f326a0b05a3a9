"""Mixed-precision optimization: float32 master weights behind the model's bf16 weights."""

from collections.abc import Mapping

import torch

__all__ = ["Masters"]


class Masters:
    """Float32 masters of the model's weights, with their AdamW states.

    A trainer in the middle of a run has masters that lie anywhere between two bf16 values, which
    is why a step of 1e-6 changes a few percent of bf16 weights. Masters made from a bf16
    checkpoint lie exactly on them, and such a step would change next to none; so each master
    starts at a random place among those that round to its weight.

    Args:
        weights: Name to the model's weight, plain tensors; `step` writes into them.
        seed: Of the places.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._weights = dict(weights)
        self._masters = {name: _unrounded(weight, generator) for name, weight in weights.items()}
        self._optimizers = {
            name: torch.optim.AdamW([master], lr=0.0, weight_decay=0.0, foreach=False)
            for name, master in self._masters.items()
        }

    def step(self, name: str, gradient: torch.Tensor, learning_rate: float) -> int:
        """Move one weight's master and round it into the model.

        Args:
            name: The weight.
            gradient: Of the loss, in any dtype, in the weight's shape.
            learning_rate: Of AdamW.

        Returns:
            How many elements of the model's weight changed their bytes.
        """
        master, optimizer = self._masters[name], self._optimizers[name]
        optimizer.param_groups[0]["lr"] = learning_rate
        master.grad = gradient.float()
        optimizer.step()
        master.grad = None
        return self._round(name)

    def add_noise(self, name: str, scale: float, generator: torch.Generator) -> int:
        """Add Gaussian noise of ``scale`` times the weight's root mean square; as `step`."""
        master = self._masters[name]
        noise = torch.randn(master.shape, generator=generator)
        master.add_(noise, alpha=scale * float(master.square().mean().sqrt()))
        return self._round(name)

    def _round(self, name: str) -> int:
        weight = self._weights[name]
        rounded = self._masters[name].to(weight.dtype)
        bits = torch.int16 if weight.element_size() == 2 else torch.int32
        changed = int((rounded.view(bits) != weight.view(bits)).sum())
        weight.copy_(rounded)
        return changed


def _unrounded(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw float32 values that round to the given bf16 values; other dtypes as they are.

    In the bit patterns of float32, those that round to a bf16 value are the ones less than half a
    bf16 step, 0x8000, away. Zeros stay: below them lie negative numbers.
    """
    exact = weight.detach().float()
    if weight.dtype != torch.bfloat16:
        return exact.clone()
    places = torch.randint(-0x7FFF, 0x8000, weight.shape, generator=generator, dtype=torch.int32)
    drawn = (exact.view(torch.int32) + places).view(torch.float32)
    return torch.where(exact == 0, exact, drawn)
