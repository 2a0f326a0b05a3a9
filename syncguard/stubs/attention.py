"""What attention keeps on a rank: sinks, cache scales, rotary table, absorbed products."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from syncguard.grids import dequantize
from syncguard.stubs.functions import rope_table
from syncguard.stubs.kernels import PlainKernel
from syncguard.stubs.methods import UnquantizedMethod
from syncguard.stubs.modules import Held, StubLayer
from syncguard.stubs.shards import Shard
from syncguard.stubs.topology import Topology

__all__ = ["AttentionKernel", "AttentionLayer"]

_ROPE_TABLES: dict[str, torch.Tensor] = {}
"""Rotary tables by head width, shared by all engines that keep theirs in this module."""


class AttentionKernel(PlainKernel):
    """Derives the absorbed products of latent attention, ``w_kc`` and ``w_vc``.

    Args:
        source: The layer whose weight is absorbed; none without a latent.
        head_dim: Width of a head.
    """

    def __init__(self, source: StubLayer | None, head_dim: int) -> None:
        super().__init__()
        self._source = weakref.ref(source) if source is not None else None
        self._head_dim = head_dim

    @property
    def source(self) -> StubLayer | None:
        """The layer whose weight is absorbed; none without a latent."""
        return self._source() if self._source is not None else None

    def derive(self, layer: Any) -> dict[str, torch.Tensor]:
        """Keys' and values' parts of the source's weight, bfloat16 [heads, head_dim, latent]."""
        del layer
        source = self.source
        if source is None:
            return {}
        weight, *scales = source.kernel.canonical(source, "weight").values()
        if scales:
            weight = dequantize(weight, scales[0])
        parts = torch.unflatten(weight, 0, (-1, 2, self._head_dim))
        return {"w_kc": parts[:, 0].contiguous(), "w_vc": parts[:, 1].contiguous()}

    def process_weights_after_loading(self, layer: Any) -> None:
        """Absorb the source's weight, into the old products where there are some."""
        for name, fresh in self.derive(layer).items():
            self.install(layer, name, fresh)

    def operands(self, layer: Any) -> dict[str, torch.Tensor]:
        """The tensors that attention reads beside its cache."""
        names = ("w_kc", "w_vc") if self.source is not None else ()
        return {"rope": layer.rotary(), **{name: getattr(layer, name) for name in names}}


class AttentionLayer(StubLayer):
    """Attention on one rank.

    Args:
        path: In the model.
        topology: Of the engine.
        held: Sinks and cache scales, if there are any.
        shards: Of these.
        source: As for `AttentionKernel`.
    """

    def __init__(
        self,
        path: str,
        topology: Topology,
        held: Sequence[Held],
        shards: Sequence[Shard],
        source: StubLayer | None,
    ) -> None:
        method = UnquantizedMethod(AttentionKernel(source, topology.head_dim))
        super().__init__(path, "attention", held, shards, method)
        self.head_dim = topology.head_dim
        if topology.rope == "buffer":
            self.register_buffer("cos_sin_cache", rope_table(self.head_dim), persistent=False)

    def derives_from(self) -> Any:
        """The layer whose weight is absorbed, or this one."""
        return self.kernel.source or self

    def absorbed_product(self, x: torch.Tensor) -> torch.Tensor:
        """Keys and values of latents, in the order of the absorbed weight's rows.

        Args:
            x: [rows, latent].

        Returns:
            float32 [rows, 2 * heads * head_dim].
        """
        operands = self.operands()
        weight = torch.stack([operands["w_kc"], operands["w_vc"]], dim=1).flatten(0, 2)
        return torch.matmul(x.float(), weight.float().T)

    def rotary(self) -> torch.Tensor:
        """The rotary table: a buffer of the layer, or the module's for this head width."""
        if "cos_sin_cache" in self._buffers:
            return self.get_buffer("cos_sin_cache")
        key = str(self.head_dim)
        if _ROPE_TABLES.get(key) is None:
            _ROPE_TABLES[key] = rope_table(self.head_dim)
        return _ROPE_TABLES[key]
