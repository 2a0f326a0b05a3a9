"""The engine's forward over its ranks, as prefill and decode run it.

Every rank computes with what it holds; sums over ranks are taken in float32 and rounded once, so
that their order seldom shows.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from syncguard.stubs.build import StubRank
from syncguard.stubs.cache import Sequences
from syncguard.stubs.functions import attend, fp8_cached, rms_norm, rotate, route, swiglu
from syncguard.stubs.modules import StubLayer
from syncguard.stubs.topology import Topology

__all__ = ["Read", "embed", "forward", "serving_product"]

Read = Callable[[StubRank, StubLayer], Mapping[str, torch.Tensor]]
"""Gives the tensors that a layer's computation reads: live ones, or those of a captured graph."""


def embed(ranks: Sequence[StubRank], tokens: torch.Tensor, read: Read) -> torch.Tensor:
    """Rows of the embedding, which ranks hold a part of each; bfloat16 [batch, tokens, hidden]."""
    total = torch.zeros(())
    for rank in ranks:
        layer: Any = rank.layer("model.embed_tokens")
        weight = layer.lookup(read(rank, layer))
        ids = tokens - layer.first_row
        mine = (ids >= 0) & (ids < weight.shape[0])
        rows = torch.nn.functional.embedding(ids.clamp(0, weight.shape[0] - 1), weight)
        total = total + torch.where(mine[..., None], rows, 0.0)
    return total.to(torch.bfloat16)


def forward(
    topology: Topology,
    ranks: Sequence[StubRank],
    x: torch.Tensor,
    sequences: Sequences,
    positions: torch.Tensor,
    read: Read,
) -> torch.Tensor:
    """Run new tokens through all layers, on top of what the sequences hold.

    Args:
        topology: Of the engine.
        ranks: Of one replica.
        x: Embedded tokens, [batch, tokens, hidden].
        sequences: Keys and values of earlier positions; those of the new ones are written.
        positions: Of the tokens, int64 [batch, tokens].
        read: What each layer reads.

    Returns:
        Logits, float32 [batch, tokens, vocab].
    """
    attention = _mla if topology.attention == "mla" else _gqa
    mask = torch.arange(sequences.length) <= positions[..., None]
    for number in range(topology.layers):
        path = f"model.layers.{number}"
        total = torch.zeros(())
        for rank in ranks:
            inner = _norm(rank, f"{path}.input_layernorm", x, read)
            held = sequences.of(rank, number)
            heads = attention(rank, f"{path}.self_attn", inner, held, positions, mask, read)
            total = total + _product(rank, f"{path}.self_attn.o_proj", heads, read)
        x = x + total.to(x.dtype)
        total = torch.zeros(())
        mlp = _moe if topology.is_moe(number) else _mlp
        for rank in ranks:
            inner = _norm(rank, f"{path}.post_attention_layernorm", x, read)
            total = total + mlp(topology, rank, f"{path}.mlp", inner, read)
        x = x + total.to(x.dtype)
    parts = [_product(rank, "lm_head", _norm(rank, "model.norm", x, read), read) for rank in ranks]
    return torch.cat(parts, dim=-1)


def serving_product(layer: Any, matrix: str, x: torch.Tensor) -> torch.Tensor:
    """What a layer's serving path makes of chosen inputs, without a bias.

    Args:
        layer: A layer with matrices.
        matrix: One of them.
        x: bfloat16 [rows, K] with K the rank's columns; every slot of experts gets the same.

    Returns:
        float32 [rows, N] or [slots, rows, N].
    """
    absorbing = layer.absorbed_by()
    if absorbing is not None:
        absorbed: torch.Tensor = absorbing.absorbed_product(x)
        return absorbed
    if layer.kind == "experts":
        x = x.expand(layer.load_format[matrix].shape[0], *x.shape)
    out: torch.Tensor = layer.kernel.compute(layer.operands(), layer, matrix, x)
    return out


def _norm(rank: StubRank, path: str, x: torch.Tensor, read: Read) -> torch.Tensor:
    return rms_norm(x, read(rank, rank.layer(path))["weight"])


def _product(rank: StubRank, path: str, x: torch.Tensor, read: Read) -> torch.Tensor:
    layer = rank.layer(path)
    rows = layer.product(read(rank, layer), x.flatten(0, -2))
    return torch.unflatten(rows, 0, x.shape[:-1])


def _gqa(
    rank: StubRank,
    path: str,
    x: torch.Tensor,
    held: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    mask: torch.Tensor,
    read: Read,
) -> torch.Tensor:
    attn = rank.layer(f"{path}.attn")
    operands = read(rank, attn)
    width = attn.head_dim
    qkv = _heads(_product(rank, f"{path}.qkv_proj", x, read).to(x.dtype), width)
    keys = held[0].shape[2]
    q, k, v = torch.split(qkv, [qkv.shape[2] - 2 * keys, keys, keys], dim=2)
    table = operands["rope"][positions]
    q, k = rotate(q, table), rotate(k, table)
    if "k_scale" in operands:
        k, v = fp8_cached(k, operands["k_scale"]), fp8_cached(v, operands["v_scale"])
    _store(held, positions, k, v)
    heads = attend(q, *held, mask, 1 / math.sqrt(width), _sinks(operands, q.shape[2]))
    return heads.flatten(2)


def _mla(
    rank: StubRank,
    path: str,
    x: torch.Tensor,
    held: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    mask: torch.Tensor,
    read: Read,
) -> torch.Tensor:
    attn = rank.layer(f"{path}.attn")
    operands = read(rank, attn)
    width = attn.head_dim
    q = _heads(_product(rank, f"{path}.q_proj", x, read).to(x.dtype), width)
    latent = _product(rank, f"{path}.kv_a_proj", x, read).to(x.dtype)[:, :, None]
    values = latent
    if "k_scale" in operands:
        values = fp8_cached(latent, operands["v_scale"])
        latent = fp8_cached(latent, operands["k_scale"])
    _store(held, positions, latent, values)
    q = torch.einsum("bthd,hdr->bthr", q.float(), operands["w_kc"].float()).to(x.dtype)
    mixed = attend(q, *held, mask, 1 / math.sqrt(width), _sinks(operands, q.shape[2]))
    heads = torch.einsum("bthr,hdr->bthd", mixed.float(), operands["w_vc"].float())
    return heads.to(x.dtype).flatten(2)


def _heads(x: torch.Tensor, width: int) -> torch.Tensor:
    return torch.unflatten(x, -1, (-1, width))


def _sinks(operands: Mapping[str, torch.Tensor], heads: int) -> torch.Tensor | None:
    return operands["sinks"][:heads] if "sinks" in operands else None


def _store(
    held: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> None:
    rows = torch.arange(positions.shape[0])[:, None]
    held[0][rows, positions] = k
    held[1][rows, positions] = v


def _mlp(
    topology: Topology, rank: StubRank, path: str, x: torch.Tensor, read: Read
) -> torch.Tensor:
    del topology
    both = _product(rank, f"{path}.gate_up_proj", x, read).to(x.dtype)
    return _product(rank, f"{path}.down_proj", swiglu(*_halves(both)), read)


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    one, two = x.chunk(2, dim=-1)
    return one, two


def _moe(
    topology: Topology, rank: StubRank, path: str, x: torch.Tensor, read: Read
) -> torch.Tensor:
    rows = x.flatten(0, 1)
    router, experts = rank.layer(f"{path}.gate"), rank.layer(f"{path}.experts")
    held = read(rank, router)
    logits = router.product(held, rows)
    shares = route(logits, held.get("e_score_correction_bias"), topology.top_k)
    operands = read(rank, experts)
    shares = _by_slot(shares, operands["placement"])[:, experts.slots]
    stacked = rows.expand(shares.shape[1], *rows.shape)
    both = experts.product(operands, stacked, "w13_weight").to(x.dtype)
    inner = swiglu(*_halves(both), operands["limit"])
    each = experts.product(operands, inner, "w2_weight")
    # What an expert that is not selected computes must not count, NaN included.
    each = torch.where(shares.T[..., None] > 0, each, 0.0)
    out = torch.unflatten(torch.einsum("ts,sth->th", shares, each), 0, x.shape[:2])
    if topology.shared_expert:
        out = out + _mlp(topology, rank, f"{path}.shared_experts", x, read)
    return out


def _by_slot(shares: torch.Tensor, placement: torch.Tensor) -> torch.Tensor:
    """Shares of slots: tokens take turns among the slots that hold the same expert."""
    if placement.numel() == shares.shape[1]:
        return shares[:, placement]
    same = placement[:, None] == placement
    turns, turn = same.sum(1), same.tril(-1).sum(1)
    tokens = torch.arange(shares.shape[0])[:, None]
    return torch.where(tokens % turns == turn, shares[:, placement], 0.0)
