"""Stacked experts of one rank, and which expert is in which slot."""

import torch

from syncguard.stubs.functions import ACTIVATION_LIMIT
from syncguard.stubs.methods import UnquantizedMethod
from syncguard.stubs.modules import Held, StubLayer
from syncguard.stubs.shards import Shard, cut
from syncguard.stubs.topology import BLOCK, Topology

__all__ = ["ActivationConstants", "ExpertLayer"]


class ActivationConstants:
    """Constants that the experts' kernel reads from memory."""

    def __init__(self) -> None:
        self.limit = torch.tensor([ACTIVATION_LIMIT])


class ExpertLayer(StubLayer):
    """The experts of one layer on one rank: ``w13_weight``, gate and up, and ``w2_weight``, down.

    Slots are numbered over all ranks. A rank holds some slots whole, or a part of every slot.
    ``placement`` tells which expert is in each slot of all ranks.

    Args:
        path: Of the layer's MLP.
        topology: Of the engine.
        index: Of the rank in its replica.
        method: How the experts are treated.
    """

    def __init__(
        self, path: str, topology: Topology, index: int, method: UnquantizedMethod
    ) -> None:
        slots, hidden = topology.experts + topology.redundant_experts, topology.hidden
        width = topology.expert_intermediate
        if topology.expert_parallel:
            own, inner = cut(slots, topology.ranks, index), slice(0, width)
        else:
            own, inner = slice(0, slots), cut(width, topology.ranks, index, BLOCK)
        count, rows = own.stop - own.start, inner.stop - inner.start
        held = [
            Held("w13_weight", (count, 2 * rows, hidden)),
            Held("w2_weight", (count, hidden, rows)),
        ]
        every = slice(0, hidden)
        shards = []
        for slot in range(count):
            name = f"{path}.experts.{slot}"
            for part, shard, start in (("gate", "w1", 0), ("up", "w3", rows)):
                here = slice(start, start + rows)
                weight = f"{name}.{part}_proj.weight"
                shards.append(Shard(weight, "w13_weight", here, inner, every, shard, slot))
            weight = f"{name}.down_proj.weight"
            shards.append(Shard(weight, "w2_weight", every, every, inner, "w2", slot))
        if method.serialized:
            shards = [part for shard in shards for part in (shard, shard.scales())]
        matrices = ("w13_weight", "w2_weight")
        super().__init__(
            f"{path}.experts", "experts", held, shards, method, matrices, ("w13_weight",)
        )
        self.prefix, self.experts = path, topology.experts
        self.slots = own
        self.placement = torch.arange(slots) % topology.experts
        self.constants = ActivationConstants()

    def slots_of(self, expert: int) -> list[int]:
        """The rank's slots, from 0, that hold an expert."""
        mine = self.placement[self.slots]
        return [slot for slot, held in enumerate(mine.tolist()) if held == expert]

    def expert_in(self, slot: int) -> int:
        """The expert in a slot of this rank."""
        return int(self.placement[self.slots.start + slot])

    def operands(self) -> dict[str, torch.Tensor]:
        """Every tensor that the layer's computation reads."""
        return {
            **super().operands(),
            "limit": self.constants.limit,
            "placement": self.placement,
        }
