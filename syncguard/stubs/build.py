"""Builds one rank of the stub engine: which layers it has and which shards they hold."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from syncguard.stubs.attention import AttentionLayer
from syncguard.stubs.config import QuantConfig
from syncguard.stubs.experts import ExpertLayer
from syncguard.stubs.modules import Held, StubLayer
from syncguard.stubs.norms import NormLayer
from syncguard.stubs.shards import Shard, cut
from syncguard.stubs.topology import BLOCK, Topology

__all__ = ["StubRank", "build_rank"]

_SINKS_PADDING: Final = 8

_Part = tuple[str, str, slice, slice]
"""Module of the learner, shard, rows and columns of its weight."""


class StubRank(torch.nn.Module):
    """Everything that one rank of the engine owns.

    Args:
        number: Of the rank.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.stub_layers: tuple[StubLayer, ...] = ()
        self._by_path: dict[str, StubLayer] = {}

    def adopt(self, layers: Sequence[StubLayer]) -> None:
        """Take the layers, which the module tree holds already, for quick access."""
        self.stub_layers = tuple(layers)
        self._by_path = {layer.path: layer for layer in layers}

    def layer(self, path: str) -> Any:
        """One layer by its path."""
        return self._by_path[path]


class _Node(torch.nn.Module):
    """A module that only holds others."""


def build_rank(topology: Topology, index: int, number: int, config: QuantConfig) -> StubRank:
    """Build one rank, its parameters not loaded yet.

    Args:
        topology: Of the engine.
        index: Of the rank in its replica.
        number: Of the rank among those of all replicas.
        config: Decides about methods and kernels.
    """
    return _Builder(topology, index, number, config).rank


class _Builder:
    def __init__(self, topology: Topology, index: int, number: int, config: QuantConfig) -> None:
        self._topology, self._index, self._config = topology, index, config
        self.rank = StubRank(number)
        self._layers: list[StubLayer] = []
        hidden = slice(0, topology.hidden)
        vocab = cut(topology.vocab, topology.ranks, index)
        embedding = [("model.embed_tokens", "", vocab, hidden)]
        self._linear("model.embed_tokens", embedding, kind="embedding")
        for layer in range(topology.layers):
            self._decoder(layer)
        self._norm("model.norm")
        if topology.draft:
            drafted = "mtp.fc" if topology.draft == "synced" else ""
            self._linear("speculator.fc", [(drafted, "", hidden, hidden)])
            self._attach("speculator.embed_tokens", self.rank.get_submodule("model.embed_tokens"))
        self._head(vocab, hidden)
        self.rank.adopt(self._layers)

    def _decoder(self, layer: int) -> None:
        topology, path = self._topology, f"model.layers.{layer}"
        self._norm(f"{path}.input_layernorm")
        if topology.attention == "mla":
            self._mla(f"{path}.self_attn")
        else:
            self._gqa(f"{path}.self_attn")
        self._norm(f"{path}.post_attention_layernorm")
        if topology.is_moe(layer):
            self._moe(f"{path}.mlp")
        else:
            self._mlp(f"{path}.mlp", topology.intermediate)

    def _gqa(self, path: str) -> None:
        topology = self._topology
        width, hidden = topology.head_dim, slice(0, topology.hidden)
        heads = self._share(topology.heads)
        keys = self._keys()
        rows = {"q": _scaled(heads, width), "k": _scaled(keys, width), "v": _scaled(keys, width)}
        parts = [(f"{path}.{part}_proj", part, rows[part], hidden) for part in "qkv"]
        self._linear(f"{path}.qkv_proj", parts, bias=topology.bias)
        self._output(path, rows["q"])
        self._attention(path, heads, None)

    def _mla(self, path: str) -> None:
        topology = self._topology
        width, hidden = topology.head_dim, slice(0, topology.hidden)
        latent = slice(0, topology.latent)
        heads = self._share(topology.heads)
        rows = _scaled(heads, width)
        self._linear(f"{path}.q_proj", [(f"{path}.q_proj", "", rows, hidden)])
        self._linear(f"{path}.kv_a_proj", [(f"{path}.kv_a_proj", "", latent, hidden)])
        absorbed = [(f"{path}.kv_b_proj", "", _scaled(heads, 2 * width), latent)]
        source = self._linear(f"{path}.kv_b_proj", absorbed)
        self._output(path, rows)
        attention = self._attention(path, heads, source)
        source.reload.dependents.append(attention)

    def _output(self, path: str, columns: slice) -> None:
        every = slice(0, self._topology.hidden)
        self._linear(f"{path}.o_proj", [(f"{path}.o_proj", "", every, columns)])

    def _attention(self, path: str, heads: slice, source: StubLayer | None) -> StubLayer:
        topology = self._topology
        held, shards = [], []
        if topology.sinks:
            count = heads.stop - heads.start
            held.append(Held("sinks", (-(-count // _SINKS_PADDING) * _SINKS_PADDING,)))
            shards.append(Shard(f"{path}.sinks", "sinks", slice(0, count), heads))
        if topology.kv_scales:
            one = slice(0, 1)
            for name in ("k_scale", "v_scale"):
                held.append(Held(name, (1,), torch.float32, buffer=True))
                shards.append(Shard(f"{path}.{name}", name, one, one))
        return self._add(AttentionLayer(f"{path}.attn", topology, held, shards, source))

    def _mlp(self, path: str, width: int) -> None:
        hidden = slice(0, self._topology.hidden)
        rows = cut(width, self._topology.ranks, self._index, BLOCK)
        parts = [(f"{path}.{part}_proj", part, rows, hidden) for part in ("gate", "up")]
        self._linear(f"{path}.gate_up_proj", parts, halved=True)
        self._linear(f"{path}.down_proj", [(f"{path}.down_proj", "", hidden, rows)])

    def _moe(self, path: str) -> None:
        topology = self._topology
        hidden, experts = slice(0, topology.hidden), slice(0, topology.experts)
        gate = [(f"{path}.gate", "", experts, hidden)]
        self._linear(f"{path}.gate", gate, kind="router", correction=topology.correction_bias)
        method = self._config.method(f"{path}.experts", "experts")
        self._add(ExpertLayer(path, topology, self._index, method))
        if topology.shared_expert:
            self._mlp(f"{path}.shared_experts", topology.expert_intermediate)

    def _head(self, vocab: slice, hidden: slice) -> None:
        if not self._topology.tied:
            self._linear("lm_head", [("lm_head", "", vocab, hidden)], kind="head")
            return
        embedding = self._layers[0]
        head = self._linear("lm_head", [("lm_head", "", vocab, hidden)], kind="head")
        head.shards = []
        embedding.reload.dependents.append(head)

    def _linear(
        self,
        path: str,
        parts: Sequence[_Part],
        *,
        kind: str = "linear",
        bias: bool = False,
        halved: bool = False,
        correction: bool = False,
    ) -> StubLayer:
        """A linear layer; parts without a name are not loaded by a sync."""
        method = self._config.method(path, kind)
        shards, start = [], 0
        for module, shard, rows, columns in parts:
            here = slice(start, start + rows.stop - rows.start)
            start = here.stop
            if not module:
                continue
            whole = Shard(f"{module}.weight", "weight", here, rows, columns, shard)
            shards.append(whole)
            if method.serialized:
                shards.append(whole.scales())
            if bias:
                shards.append(Shard(f"{module}.bias", "bias", here, rows, None, shard))
        columns = parts[0][3]
        held = [Held("weight", (start, columns.stop - columns.start))]
        if bias:
            held.append(Held("bias", (start,)))
        if correction:
            name = "e_score_correction_bias"
            held.append(Held(name, (start,), torch.float32, buffer=True))
            every = slice(0, start)
            shards.append(Shard(f"{parts[0][0]}.{name}", name, every, every))
        halves = ("weight",) if halved else ()
        layer = StubLayer(path, kind, held, shards, method, ("weight",), halves)
        layer.first_row = parts[0][2].start
        return self._add(layer)

    def _norm(self, path: str) -> None:
        every = slice(0, self._topology.hidden)
        self._add(NormLayer(path, [Shard(f"{path}.weight", "weight", every, every)]))

    def _add(self, layer: StubLayer) -> StubLayer:
        self._layers.append(layer)
        self._attach(layer.path, layer)
        return layer

    def _attach(self, path: str, module: torch.nn.Module) -> None:
        parent: torch.nn.Module = self.rank
        *nodes, leaf = path.split(".")
        for node in nodes:
            if not hasattr(parent, node):
                parent.add_module(node, _Node())
            parent = getattr(parent, node)
        parent.add_module(leaf, module)

    def _share(self, total: int) -> slice:
        return cut(total, self._topology.ranks, self._index)

    def _keys(self) -> slice:
        """The rank's key heads: several ranks hold the same one where there are too few."""
        ranks, keys = self._topology.ranks, self._topology.kv_heads
        if keys >= ranks:
            return self._share(keys)
        own = self._index * keys // ranks
        return slice(own, own + 1)


def _scaled(heads: slice, width: int) -> slice:
    return slice(heads.start * width, heads.stop * width)
