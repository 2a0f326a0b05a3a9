"""Moves experts between slots while an engine serves, as load balancers do."""

from collections.abc import Sequence

import torch

from syncguard.stubs.build import StubRank
from syncguard.stubs.experts import ExpertLayer

__all__ = ["rebalance"]


def rebalance(ranks: Sequence[StubRank], seed: int) -> None:
    """Place the experts of every layer anew, each in at least one slot.

    Args:
        ranks: Of one replica; all of them change.
        seed: Of the new places.
    """
    generator = torch.Generator().manual_seed(seed)
    for paths in zip(*(rank.stub_layers for rank in ranks), strict=True):
        layers = [layer for layer in paths if isinstance(layer, ExpertLayer)]
        if layers:
            _move(layers, generator)


def _move(layers: Sequence[ExpertLayer], generator: torch.Generator) -> None:
    slots, experts = layers[0].placement.numel(), layers[0].experts
    extra = torch.randint(experts, (slots - experts,), generator=generator)
    everyone = torch.cat([torch.arange(experts), extra])
    placement = everyone[torch.randperm(slots, generator=generator)]
    found = [_by_expert(layer) for layer in layers]
    for layer, own in zip(layers, found, strict=True):
        # Whole experts may come from any rank; of experts that ranks share, each moves its part.
        source = {**{k: v for held in found for k, v in held.items()}, **own}
        if layer.slots.stop - layer.slots.start == slots:
            source = own
        kept = layer.loadable()
        for name in {component for _, component in own}:
            wanted = placement[layer.slots].tolist()
            layer.rebind(name, torch.stack([source[expert, name] for expert in wanted]))
        layer.placement.copy_(placement)
        assert layer.quant_method is not None, "experts have a method"  # noqa: S101
        layer.quant_method.process_weights_after_loading(layer)
        layer.reload.fold(layer, kept)


def _by_expert(layer: ExpertLayer) -> dict[tuple[int, str], torch.Tensor]:
    """The layer's canonical tensors by expert and parameter, copied."""
    return {
        (layer.expert_in(slot), name): tensor[slot].clone()
        for matrix in layer.matrices
        for name, tensor in layer.kernel.canonical(layer, matrix).items()
        for slot in range(tensor.shape[0])
    }
