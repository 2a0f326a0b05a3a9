"""One sync on the engine's side: names are routed to shards of layers, layer by layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from syncguard.grids import quantize
from syncguard.observations import Loaded
from syncguard.stubs.build import StubRank
from syncguard.stubs.experts import ExpertLayer
from syncguard.stubs.shards import Shard, expert_of

__all__ = ["Receiver"]

_TIED = "lm_head.weight"


class Receiver:
    """Takes buckets for one rank.

    Args:
        rank: The rank.
        tied: Whether the head is the embedding, so that a head on the wire is of no use.
    """

    def __init__(self, rank: StubRank, *, tied: bool) -> None:
        self.rank = rank
        self._tied = tied
        self._routes: dict[str, list[tuple[Any, Shard]]] = {}
        self._experts: dict[str, ExpertLayer] = {}
        for layer in rank.stub_layers:
            if isinstance(layer, ExpertLayer):
                self._experts[layer.prefix] = layer
                continue
            for shard in layer.shards:
                self._routes.setdefault(shard.weight, []).append((layer, shard))

    def open(self) -> None:
        """Begin to wait for every layer's weights."""
        for layer in self.rank.stub_layers:
            layer.reload.open()

    def start(self, weights: Mapping[str, torch.Tensor], generator: torch.Generator) -> None:
        """Load the weights that an engine starts on; what no sync brings is drawn here."""
        self.open()
        for name, tensor in weights.items():
            if any(
                layer.quant_method and layer.quant_method.serialized and shard.source_columns
                for layer, shard in self.route(name)
            ):
                elements, scales = quantize(tensor)
                self.load(name, elements, 0)
                self.load(f"{name}_scale", scales, 0)
            else:
                self.load(name, tensor, 0)
        for layer in self.rank.stub_layers:
            if layer.matrices and not layer.parts:
                layer.reload.draw(generator)
        embedding, head = self.rank.layer("model.embed_tokens"), self.rank.layer("lm_head")
        if self._tied:
            for name in embedding.loadable():
                head.put(name, getattr(embedding, name))
            head.kernel.process_weights_after_loading(head)
        self.close()

    def finalize(self) -> None:
        """Process what is loaded once more, from checkpoint order."""
        for layer in self.rank.stub_layers:
            layer.reload.again()

    def receive(self, bucket: Sequence[tuple[str, torch.Tensor]], number: int) -> list[Loaded]:
        """Take one bucket.

        Args:
            bucket: Names and whole weights.
            number: Of the bucket, from 0.

        Returns:
            What went where.

        Raises:
            ValueError: The model has no such weight, or it has another shape.
        """
        return [row for name, tensor in bucket for row in self.load(name, tensor, number)]

    def load(self, name: str, tensor: torch.Tensor, bucket: int) -> list[Loaded]:
        """Take one weight; see `receive`."""
        rows = []
        for layer, shard in self.route(name):
            layer.reload.receive(shard, tensor)
            slot = f"[{shard.slot}]" if shard.slot >= 0 else ""
            found = expert_of(name)
            rows.append(
                Loaded(
                    weight=name,
                    parameter=f"{layer.path}.{shard.parameter}{slot}",
                    shard=shard.shard,
                    expert=found[1] if found is not None else -1,
                    numel=tensor.numel(),
                    bucket=bucket,
                    rank=self.rank.number,
                )
            )
        return rows

    def route(self, name: str) -> list[tuple[Any, Shard]]:
        """The layers and shards of this rank that a weight goes to; none if it holds no part.

        Raises:
            ValueError: The model has no such weight.
        """
        if name in self._routes:
            return self._routes[name]
        found = expert_of(name)
        layer = self._experts.get(found[0]) if found is not None else None
        if found is not None and layer is not None:
            _, expert, rest = found
            names = {f"{layer.prefix}.experts.{slot}.{rest}" for slot in layer.slots_of(expert)}
            known = any(shard.weight.endswith(f".{rest}") for shard in layer.shards)
            if known and expert < layer.experts:
                return [(layer, shard) for shard in layer.shards if shard.weight in names]
        if self._tied and name == _TIED:
            return []
        raise ValueError(f"the engine has no weight {name!r}")

    def partial(self) -> list[str]:
        """Layers of which a part has arrived."""
        return [layer.path for layer in self.rank.stub_layers if layer.reload.partial]

    def flush(self) -> None:
        """Complete and fold every layer of which a part has arrived."""
        for layer in self.rank.stub_layers:
            if layer.reload.partial:
                layer.reload.complete()

    def close(self) -> None:
        """Hold on to nothing of the sync."""
        for layer in self.rank.stub_layers:
            layer.reload.kept = {}

    def abandon(self) -> None:
        """Forget what arrived for layers that are not folded."""
        for layer in self.rank.stub_layers:
            layer.reload.abandon()
