"""Weights of a stub: random ones by seed, and float32 masters behind them."""

import math
from collections.abc import Sequence
from typing import Final

import torch

from syncguard.stubs.topology import Topology, WeightSpec, weight_specs

__all__ = ["Masters", "initial_weights"]

_NORM_SPREAD: Final = 0.1
_TABLE_SPREAD: Final = 0.2
_CORRECTION_OFFSET: Final = 8.0
"""Correction biases lie far from zero and close together: bfloat16 would make them one."""
_CORRECTION_SPREAD: Final = 0.1
_CALIBRATED_SCALE: Final = 0.02


def initial_weights(topology: Topology, seed: int) -> dict[str, torch.Tensor]:
    """Random weights and persistent buffers, the same for the same topology and seed."""
    generator = torch.Generator().manual_seed(seed)
    return {spec.name: _draw(spec, generator) for spec in weight_specs(topology)}


class Masters:
    """AdamW on float32 masters that lie at random places among those that round to the weights.

    So a step of 1e-6 changes a few bfloat16 weights, as in the middle of a run; masters that lie
    exactly on bfloat16 values would change next to none. All masters are one flat vector.

    Args:
        weights: The model's weights, which `step` writes into.
        seed: Of the places.
    """

    def __init__(self, weights: Sequence[torch.Tensor], seed: int) -> None:
        self._weights = list(weights)
        generator = torch.Generator().manual_seed(seed)
        flat = torch.cat([weight.detach().float().reshape(-1) for weight in weights])
        narrow = torch.cat([torch.full((w.numel(),), w.dtype == torch.bfloat16) for w in weights])
        bits = flat.view(torch.int32)
        places = torch.randint(-0x7FFF, 0x8000, bits.shape, generator=generator, dtype=torch.int32)
        free = narrow & (flat != 0)  # below zero lie negative numbers
        self._flat = torch.where(free, bits + places, bits).view(torch.float32)
        self._optimizer = torch.optim.AdamW([self._flat], lr=0.0, weight_decay=0.0, foreach=False)

    @property
    def revision(self) -> int:
        """A number that changes whenever a master does."""
        return self._flat._version

    def values(self) -> list[torch.Tensor]:
        """The masters, float32, shaped like the weights; views of the real ones."""
        parts = torch.split(self._flat, [weight.numel() for weight in self._weights])
        return [part.view(w.shape) for part, w in zip(parts, self._weights, strict=True)]

    def step(self, gradients: Sequence[torch.Tensor], learning_rate: float) -> int:
        """Move the masters and round them into the weights.

        Returns:
            How many elements of the weights changed.
        """
        self._flat.grad = torch.cat([gradient.float().reshape(-1) for gradient in gradients])
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()
        self._flat.grad = None
        return self._round()

    def add_noise(self, scale: float, seed: int) -> int:
        """Add noise of ``scale`` standard deviations of each weight; as `step`."""
        generator = torch.Generator().manual_seed(seed)
        for master in self.values():
            spread = float(master.std()) if master.numel() > 1 else float(master.abs().mean())
            master.add_(torch.randn(master.shape, generator=generator), alpha=scale * spread)
        return self._round()

    def _round(self) -> int:
        changed = 0
        for master, weight in zip(self.values(), self._weights, strict=True):
            rounded = master.to(weight.dtype)
            changed += int((rounded != weight).sum())
            weight.copy_(rounded)
        return changed


def _draw(spec: WeightSpec, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(spec.shape, generator=generator)
    leaf = spec.name.rpartition(".")[2]
    if leaf == "e_score_correction_bias":
        drawn = _CORRECTION_OFFSET + _CORRECTION_SPREAD * noise
    elif spec.kind == "buffer":
        drawn = _CALIBRATED_SCALE * (1 + noise.abs())
    elif spec.kind == "norm":
        drawn = 1 + _NORM_SPREAD * noise
    elif spec.kind in ("embedding", "head", "bias"):
        drawn = _TABLE_SPREAD * noise
    else:
        drawn = noise / math.sqrt(spec.shape[-1])
    return drawn.to(spec.dtype)
