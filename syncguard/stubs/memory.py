"""Pausing an engine: its memory is released, and what a sync does not bring is kept aside."""

from collections.abc import Callable, Iterator, Sequence

import torch

from syncguard.engines.reachable import reachable_tensors
from syncguard.fingerprint import fingerprint
from syncguard.stubs.build import StubRank

__all__ = ["CACHES", "Memory"]

CACHES = ("syncguard.stubs.",)
"""Packages whose module globals hold tensors of the engine."""

_RELEASED_SEED = 7


class Memory:
    """What happens to the memory of an engine's ranks while it is paused.

    Args:
        ranks: Of all replicas.
        prefix: What a rank's paths begin with.
    """

    def __init__(self, ranks: Sequence[StubRank], prefix: Callable[[StubRank], str]) -> None:
        self._ranks, self._prefix = ranks, prefix
        self._aside: list[tuple[torch.Tensor, torch.Tensor]] = []

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor that can be reached, module globals included, with its path."""
        for rank in self._ranks:
            for path, _, tensor in reachable_tensors(rank, CACHES):
                if tensor.numel():
                    yield f"{self._prefix(rank)}{path}", tensor

    def release(self, level: int) -> None:
        """Keep aside what must last, then let everything turn into noise, where it is.

        Args:
            level: 1 keeps all weights aside, 2 only what a sync does not bring.
        """
        carried = self._carried() if level > 1 else set()
        self._aside = [
            (tensor, tensor.detach().clone())
            for path, tensor in self.tensors()
            if _storage(tensor) not in carried and self.keeps(path, tensor)
        ]
        generator = torch.Generator().manual_seed(_RELEASED_SEED)
        storages = {_storage(t): t.untyped_storage() for _, t in self.tensors()}
        for storage in storages.values():
            octets = torch.empty(0, dtype=torch.uint8).set_(storage)
            octets.random_(0, 256, generator=generator)

    def lasting(self) -> list[str]:
        """Paths of what no sync brings, and so only a pause can keep."""
        carried = self._carried()
        return [path for path, tensor in self.tensors() if _storage(tensor) not in carried]

    def preserved(self) -> dict[str, int]:
        """A fingerprint of each tensor that no sync brings, by path."""
        carried = self._carried()
        return {
            path: fingerprint(tensor)
            for path, tensor in self.tensors()
            if _storage(tensor) not in carried
        }

    def restore(self) -> None:
        """Put back what was kept aside."""
        for tensor, kept in self._aside:
            tensor.detach().copy_(kept)
        self._aside = []

    def keeps(self, path: str, tensor: torch.Tensor) -> bool:
        """Whether one tensor is kept aside while the engine is paused."""
        del path, tensor
        return True

    def _carried(self) -> set[int]:
        """Storages that the next sync fills: loaded parameters, and what is derived from them."""
        carried: set[int] = set()
        for rank in self._ranks:
            loaded = [layer for layer in rank.stub_layers if layer.shards]
            derived = [other for layer in loaded for other in layer.reload.dependents]
            for layer in loaded:
                carried.update(_storage(tensor) for tensor in layer.loadable().values())
            for layer in (*loaded, *derived):
                if layer.kernel is not None:
                    carried.update(map(_storage, layer.kernel.rebuilt(layer)))
        return carried


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
