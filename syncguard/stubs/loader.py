"""Loading a layer piece by piece: shards are staged until the layer is complete, then folded.

As in vLLM's layer-wise reload, progress is a count of elements, references to what arrived are
held until the layer is complete, and what never arrived is whatever the memory held before.
"""

from typing import Any, Final

import torch

from syncguard.grids import quantize
from syncguard.stubs.shards import Shard

__all__ = ["LayerReload", "ShardLoader"]

_LEFTOVER_SEED: Final = 20_240_229
_LEFTOVER_SIZE: Final = 4096
_LEFTOVER_SPREAD: Final = 0.05


class ShardLoader:
    """Writes shards into one parameter; a parameter refers to it as its ``weight_loader``.

    Args:
        parameter: Path of the parameter, for messages.
    """

    def __init__(self, parameter: str) -> None:
        self.parameter = parameter

    def __call__(self, destination: torch.Tensor, loaded: torch.Tensor, shard: Shard) -> None:
        """Write one shard; see `write`."""
        self.write(destination, loaded, shard)

    def write(self, destination: torch.Tensor, loaded: torch.Tensor, shard: Shard) -> None:
        """Copy the rank's rectangle of a whole weight to its place.

        Args:
            destination: The staged parameter.
            loaded: The weight as it came, all of it.
            shard: Which rectangle, and where it goes.

        Raises:
            ValueError: The weight has another shape than the parameter was made for.
        """
        piece = loaded[shard.source_rows]
        if shard.source_columns is not None and loaded.ndim > 1:
            piece = piece[:, shard.source_columns]
        place = destination if shard.slot < 0 else destination[shard.slot]
        place = place[shard.rows]
        if piece.shape != place.shape:
            raise ValueError(
                f"{self.parameter}: {shard.weight} came as {list(loaded.shape)}, of which "
                f"{list(piece.shape)} would go to {list(place.shape)}"
            )
        place.copy_(piece)


def default_weight_loader(destination: torch.Tensor, loaded: torch.Tensor, shard: Shard) -> None:
    """Copy a whole weight, for a parameter that has no loader of its own.

    Raises:
        ValueError: The shapes differ.
    """
    if destination.shape != loaded.shape:
        raise ValueError(
            f"a parameter without a loader of its own, of shape {list(destination.shape)}, cannot "
            f"take {shard.weight} of shape {list(loaded.shape)}"
        )
    destination.copy_(loaded)


class LayerReload:
    """The state of one layer while a sync is open.

    Args:
        layer: The layer.

    Attributes:
        kept: Parameters and buffers that graphs read, as they were when the sync began.
        received: Elements that arrived.
        done: Whether the layer is complete and folded.
        dependents: Layers whose kernels derive something from this layer's parameters.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.kept: dict[str, torch.Tensor] = {}
        self.pending: list[tuple[Shard, torch.Tensor]] = []
        self.received = 0
        self.done = False
        self.dependents: list[Any] = []

    @property
    def expected(self) -> int:
        """Elements of a complete layer."""
        return sum(shard.numel for shard in self.layer.shards)

    @property
    def partial(self) -> bool:
        """Whether something arrived, but not all."""
        return bool(self.pending) and not self.done

    def open(self) -> None:
        """Begin to wait for the layer's weights."""
        self.kept = self.layer.loadable()
        self.close()
        self.done = False

    def receive(self, shard: Shard, loaded: torch.Tensor) -> None:
        """Take a reference to a weight; complete the layer when the count of elements is reached.

        What comes for a layer that is complete is dropped.
        """
        if self.done:
            return
        self.pending.append((shard, loaded))
        self.received += shard.numel
        if self.received >= self.expected:
            self.complete()

    def complete(self) -> None:
        """Write what arrived into staged parameters, process them, and fold them back."""
        layer = self.layer
        staged = self.stage()
        for shard, loaded in self.pending:
            destination = staged[shard.parameter]
            loader = getattr(destination, "weight_loader", default_weight_loader)
            loader(destination, loaded, shard)
        if layer.quant_method is not None:
            layer.quant_method.process_weights_after_loading(layer)
        self.fold(layer, self.kept)
        self.close()
        self.done, self.kept = True, {}
        for dependent in self.dependents:
            dependent.kernel.process_weights_after_loading(dependent)

    def stage(self) -> dict[str, torch.Tensor]:
        """Put fresh parameters in load format on the layer, and return them by name."""
        layer = self.layer
        whole = len({(shard.weight, shard.slot) for shard, _ in self.pending}) == len(layer.shards)
        for name, row in layer.load_format.items():
            fresh = torch.zeros(row.shape, dtype=row.dtype)
            layer.rebind(name, fresh if whole else _leftover(fresh))
        return {name: getattr(layer, name) for name in layer.load_format}

    def fold(self, layer: Any, kept: dict[str, torch.Tensor]) -> None:
        """Copy what the layer now holds into the storages of before, and bind these again.

        Args:
            layer: The layer, with fresh parameters.
            kept: Its parameters and buffers of before.
        """
        for name, old in kept.items():
            fresh = getattr(layer, name)
            if fresh is not old and fresh.shape == old.shape and fresh.dtype == old.dtype:
                old.data.copy_(fresh.data)
                layer.put(name, old)

    def draw(self, generator: torch.Generator) -> None:
        """Give random weights to a layer that no sync loads."""
        for matrix in self.layer.matrices:
            shape = self.layer.load_format[matrix].shape
            drawn = (torch.randn(shape, generator=generator) / shape[-1] ** 0.5).bfloat16()
            if self.layer.quant_method.serialized:
                elements, scales = quantize(drawn)
                self.layer.rebind(matrix, elements)
                self.layer.rebind(f"{matrix}_scale", scales)
            else:
                self.layer.rebind(matrix, drawn)
        self.layer.quant_method.process_weights_after_loading(self.layer)

    def again(self) -> None:
        """Process what the layer holds once more, from checkpoint order, and fold it back."""
        layer = self.layer
        if layer.quant_method is None:
            return
        kept = layer.loadable()
        for matrix in layer.matrices:
            if not getattr(layer, matrix).numel():
                return  # given up after packing: there is nothing to process
            for name, tensor in layer.kernel.canonical(layer, matrix).items():
                layer.rebind(name, tensor)
        layer.quant_method.process_weights_after_loading(layer)
        self.fold(layer, kept)

    def abandon(self) -> None:
        """Give up an incomplete layer: what it held before the sync is bound again."""
        if not self.done:
            for name, old in self.kept.items():
                self.layer.put(name, old)
        self.close()
        self.kept = {}

    def close(self) -> None:
        """Forget what arrived."""
        self.pending, self.received = [], 0


def _leftover(fresh: torch.Tensor) -> torch.Tensor:
    """What freshly allocated memory may hold: plausible numbers that belong to nothing."""
    generator = torch.Generator().manual_seed(_LEFTOVER_SEED)
    noise = torch.randn(_LEFTOVER_SIZE, generator=generator) * _LEFTOVER_SPREAD
    octets = noise.bfloat16().view(torch.uint8)
    flat = fresh.view(-1).view(torch.uint8) if fresh.numel() else fresh.view(torch.uint8)
    copies = -(-flat.numel() // octets.numel())
    flat.copy_(octets.repeat(copies)[: flat.numel()])
    return fresh
