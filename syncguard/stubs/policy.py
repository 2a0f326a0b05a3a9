"""The learner's forward, over whatever its weights are used as."""

import math
from typing import Protocol

import torch

from syncguard.stubs.functions import (
    ACTIVATION_LIMIT,
    attend,
    fp8_cached,
    rms_norm,
    rope_table,
    rotate,
    route,
    swiglu,
)
from syncguard.stubs.topology import Topology

__all__ = ["Weights", "forward"]


class Weights(Protocol):
    """How a forward uses the learner's weights."""

    dtype: torch.dtype

    def value(self, name: str) -> torch.Tensor:
        """The weight's values as they are used outside of products."""

    def product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """``x @ weight.T`` in float32; ``x`` [..., K] in ``dtype``."""

    def products(self, x: torch.Tensor, names: list[str]) -> torch.Tensor:
        """The same for weights of one shape, ``x`` [len(names), rows, K]."""


def forward(topology: Topology, weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of all tokens.

    Args:
        topology: Of the model.
        weights: Of the model.
        tokens: int64 [batch, length].

    Returns:
        float32 [batch, length, vocab].
    """
    length = tokens.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None]
    table = rope_table(topology.head_dim)[:length][None]
    x = torch.nn.functional.embedding(tokens, weights.value("model.embed_tokens.weight"))
    for layer in range(topology.layers):
        prefix = f"model.layers.{layer}"
        attention = _mla if topology.attention == "mla" else _gqa
        inner = rms_norm(x, weights.value(f"{prefix}.input_layernorm.weight"))
        heads = attention(topology, weights, f"{prefix}.self_attn", inner, mask, table)
        x = x + weights.product(heads, f"{prefix}.self_attn.o_proj.weight").to(x.dtype)
        inner = rms_norm(x, weights.value(f"{prefix}.post_attention_layernorm.weight"))
        mlp = _moe if topology.is_moe(layer) else _mlp
        x = x + mlp(topology, weights, f"{prefix}.mlp", inner).to(x.dtype)
    x = rms_norm(x, weights.value("model.norm.weight"))
    head = "model.embed_tokens.weight" if topology.tied else "lm_head.weight"
    return weights.product(x, head)


def _gqa(
    topology: Topology,
    weights: Weights,
    prefix: str,
    x: torch.Tensor,
    mask: torch.Tensor,
    table: torch.Tensor,
) -> torch.Tensor:
    parts = []
    for part in "qkv":
        y = weights.product(x, f"{prefix}.{part}_proj.weight")
        if topology.bias:
            y = y + weights.value(f"{prefix}.{part}_proj.bias").float()
        parts.append(torch.unflatten(y.to(x.dtype), -1, (-1, topology.head_dim)))
    q, k, v = rotate(parts[0], table), rotate(parts[1], table), parts[2]
    if topology.kv_scales:
        k = fp8_cached(k, weights.value(f"{prefix}.k_scale"))
        v = fp8_cached(v, weights.value(f"{prefix}.v_scale"))
    sinks = weights.value(f"{prefix}.sinks") if topology.sinks else None
    return attend(q, k, v, mask, 1 / math.sqrt(topology.head_dim), sinks).flatten(2)


def _mla(
    topology: Topology,
    weights: Weights,
    prefix: str,
    x: torch.Tensor,
    mask: torch.Tensor,
    table: torch.Tensor,
) -> torch.Tensor:
    del table  # latents carry no positions
    q = weights.product(x, f"{prefix}.q_proj.weight").to(x.dtype)
    q = torch.unflatten(q, -1, (-1, topology.head_dim))
    latent = weights.product(x, f"{prefix}.kv_a_proj.weight").to(x.dtype)[:, :, None]
    values = latent
    if topology.kv_scales:
        latent = fp8_cached(latent, weights.value(f"{prefix}.k_scale"))
        values = fp8_cached(values, weights.value(f"{prefix}.v_scale"))
    absorbed = weights.value(f"{prefix}.kv_b_proj.weight")
    absorbed = torch.unflatten(absorbed, 0, (topology.heads, 2, topology.head_dim)).float()
    q = torch.einsum("bthd,hdr->bthr", q.float(), absorbed[:, 0]).to(x.dtype)
    sinks = weights.value(f"{prefix}.sinks") if topology.sinks else None
    mixed = attend(q, latent, values, mask, 1 / math.sqrt(topology.head_dim), sinks)
    heads = torch.einsum("bthr,hdr->bthd", mixed.float(), absorbed[:, 1])
    return heads.to(x.dtype).flatten(2)


def _mlp(topology: Topology, weights: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    del topology
    gate = weights.product(x, f"{prefix}.gate_proj.weight").to(x.dtype)
    up = weights.product(x, f"{prefix}.up_proj.weight").to(x.dtype)
    return weights.product(swiglu(gate, up), f"{prefix}.down_proj.weight")


def _moe(topology: Topology, weights: Weights, prefix: str, x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(0, 1)
    correction = None
    if topology.correction_bias:
        correction = weights.value(f"{prefix}.gate.e_score_correction_bias")
    logits = weights.product(rows, f"{prefix}.gate.weight")
    shares = route(logits, correction, topology.top_k)

    def names(part: str) -> list[str]:
        return [f"{prefix}.experts.{e}.{part}_proj.weight" for e in range(topology.experts)]

    stacked = rows.expand(topology.experts, *rows.shape)
    gate = weights.products(stacked, names("gate")).to(x.dtype)
    up = weights.products(stacked, names("up")).to(x.dtype)
    each = weights.products(swiglu(gate, up, torch.tensor([ACTIVATION_LIMIT])), names("down"))
    out = torch.unflatten(torch.einsum("te,eth->th", shares, each), 0, x.shape[:2])
    if topology.shared_expert:
        out = out + _mlp(topology, weights, f"{prefix}.shared_experts", x)
    return out
