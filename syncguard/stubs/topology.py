"""The shape of a stub: sizes, parts, parallelism and the layouts of its kernels."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

import torch

from syncguard.errors import UsageError

__all__ = ["BLOCK", "CHOICES", "Topology", "WeightSpec", "weight_specs"]

BLOCK: Final = 32
"""Elements of an MXFP8 block: what is cut along a reduction dimension is cut at multiples of it."""

_POSITIVE: Final = (
    "layers",
    "hidden",
    "vocab",
    "heads",
    "kv_heads",
    "head_dim",
    "intermediate",
    "top_k",
    "expert_intermediate",
    "latent",
    "ranks",
    "replicas",
)
_BLOCKED: Final = ("hidden", "intermediate", "expert_intermediate", "latent")

CHOICES: Final = {
    "attention": ("gqa", "mla"),
    "draft": ("", "frozen", "synced"),
    "expert_kernel": (
        "plain",
        "swizzled",
        "swapped",
        "interleaved",
        "shuffled",
        "twin",
        "cached",
        "two_level",
    ),
    "head_kernel": ("plain", "packed", "freed"),
    "linear_kernel": ("plain", "swizzled", "shuffled", "twin", "cached", "two_level"),
    "quantization": ("mxfp8", "none"),
    "rope": ("buffer", "global"),
    "wire": ("bf16", "mxfp8"),
}
"""Values of the fields of `Topology` that are names."""


@dataclass(frozen=True, slots=True)
class Topology:
    """What a stub is made of.

    Attributes:
        layers: Decoder layers.
        hidden: Width of the residual stream, a multiple of 32.
        vocab: Tokens; any number.
        heads: Query heads.
        kv_heads: Key and value heads of grouped-query attention.
        head_dim: Width of a head.
        intermediate: Width of a dense MLP, a multiple of 32.
        experts: Experts of a layer; 0 makes every layer dense.
        top_k: Experts of a token.
        expert_intermediate: Width of an expert, and of the shared one.
        shared_expert: Whether every token also passes a shared expert.
        dense_layers: How many of the first layers stay dense beside experts.
        redundant_experts: Slots beyond one for each expert; the engine places experts in slots.
        correction_bias: Whether routers have a float32 buffer that is added for selection.
        tied: Whether the head is the embedding.
        bias: Whether q, k and v have biases.
        attention: ``gqa``, or ``mla``: keys and values from a latent, by products that the
            engine absorbs into derived tensors.
        latent: Width of the latent of ``mla``, a multiple of 32.
        sinks: Whether heads have an attention sink.
        kv_scales: Whether keys and values are cached in FP8 with calibrated scales.
        rope: Where the engine keeps its rotary table: a ``buffer`` that is not persistent, or a
            module's ``global``.
        draft: A draft model beside the engine's: none, ``synced`` or ``frozen``.
        ranks: Simulated ranks over which the engine splits the model.
        expert_parallel: Whether ranks hold whole experts, or a part of each.
        replicas: Copies of the engine's ranks.
        quantization: ``mxfp8`` or ``none``.
        wire: What a sync sends for low-precision weights: the model's ``bf16``, or elements and
            scales of ``mxfp8``.
        linear_kernel: Layout of the MXFP8 linear kernel.
        expert_kernel: Layout of the MXFP8 expert kernel.
        head_kernel: What the head computes with: its parameter, a ``packed`` copy in a closure,
            or such a copy only (``freed``).
        graph: Whether decoding replays a captured graph.

    Raises:
        UsageError: The parts do not fit together.
    """

    layers: int = 2
    hidden: int = 64
    vocab: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 128
    experts: int = 0
    top_k: int = 2
    expert_intermediate: int = 64
    shared_expert: bool = False
    dense_layers: int = 0
    redundant_experts: int = 0
    correction_bias: bool = True
    tied: bool = False
    bias: bool = False
    attention: str = "gqa"
    latent: int = 32
    sinks: bool = False
    kv_scales: bool = False
    rope: str = "buffer"
    draft: str = ""
    ranks: int = 1
    expert_parallel: bool = True
    replicas: int = 1
    quantization: str = "mxfp8"
    wire: str = "bf16"
    linear_kernel: str = "swizzled"
    expert_kernel: str = "swapped"
    head_kernel: str = "packed"
    graph: bool = True

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                close = difflib.get_close_matches(str(value), known, n=1)
                hint = f"; did you mean {close[0]!r}" if close else ""
                raise UsageError(
                    f"topology: {name} {value!r} is not one of "
                    f"{', '.join(repr(choice) for choice in known)}{hint}"
                )
        for why in self._misfits():
            raise UsageError(f"topology: {why}, got {self}")

    def __str__(self) -> str:
        """The fields that differ from the defaults, as the arguments of a call."""
        changed = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"Topology({', '.join(changed)})"

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return bool(self.experts) and layer >= self.dense_layers

    def _misfits(self) -> Iterator[str]:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1"
                return
        for name in _BLOCKED:
            if getattr(self, name) % BLOCK:
                yield f"{name} must be a multiple of {BLOCK}"
        columns = self.heads * self.head_dim // self.ranks
        rules = (
            (
                min(self.experts, self.dense_layers, self.redundant_experts) >= 0,
                "counts must not be negative",
            ),
            (self.head_dim % 2 == 0, "head_dim must be even, for rotary positions"),
            (
                self.heads % self.ranks == 0 and columns % BLOCK == 0,
                f"each rank must hold whole heads and a multiple of {BLOCK} of their columns",
            ),
            (self.heads % self.kv_heads == 0, "heads must be a multiple of kv_heads"),
            (
                self.kv_heads % self.ranks == 0 or self.ranks % self.kv_heads == 0,
                "of kv_heads and ranks one must be a multiple of the other",
            ),
            (
                self.vocab >= self.ranks and self.intermediate >= BLOCK * self.ranks,
                "every rank needs a part of the vocabulary and of the MLP",
            ),
            (not self.experts or self.top_k <= self.experts, "top_k must not exceed experts"),
            (
                not self.experts or not self.expert_parallel or self.experts >= self.ranks,
                "every rank needs an expert",
            ),
            (
                not self._shares_experts or self.expert_intermediate >= BLOCK * self.ranks,
                "every rank needs a part of each expert that ranks share",
            ),
        )
        yield from (text for fits, text in rules if not fits)

    @property
    def _shares_experts(self) -> bool:
        return bool(self.experts) and (self.shared_expert or not self.expert_parallel)


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One of the learner's weights or persistent buffers.

    Attributes:
        name: In checkpoint layout.
        shape: In checkpoint layout.
        kind: As in `syncguard.observations.LearnerLayer`.
        dtype: Of the model.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: torch.dtype = torch.bfloat16


def weight_specs(topology: Topology) -> list[WeightSpec]:
    """Every weight and persistent buffer of the learner, in checkpoint order; a tied head not."""
    hidden, vocab = topology.hidden, topology.vocab
    specs = [WeightSpec("model.embed_tokens.weight", (vocab, hidden), "embedding")]
    for layer in range(topology.layers):
        prefix = f"model.layers.{layer}"
        specs.append(WeightSpec(f"{prefix}.input_layernorm.weight", (hidden,), "norm"))
        specs.extend(_attention(topology, f"{prefix}.self_attn"))
        specs.append(WeightSpec(f"{prefix}.post_attention_layernorm.weight", (hidden,), "norm"))
        if topology.is_moe(layer):
            specs.extend(_experts(topology, f"{prefix}.mlp"))
        else:
            specs.extend(_mlp(f"{prefix}.mlp", hidden, topology.intermediate, "linear"))
    specs.append(WeightSpec("model.norm.weight", (hidden,), "norm"))
    if topology.draft == "synced":
        specs.append(WeightSpec("mtp.fc.weight", (hidden, hidden), "linear"))
    if not topology.tied:
        specs.append(WeightSpec("lm_head.weight", (vocab, hidden), "head"))
    return specs


def _attention(topology: Topology, prefix: str) -> Iterator[WeightSpec]:
    width, hidden = topology.heads * topology.head_dim, topology.hidden
    key = topology.kv_heads * topology.head_dim
    if topology.attention == "mla":
        yield WeightSpec(f"{prefix}.q_proj.weight", (width, hidden), "linear")
        yield WeightSpec(f"{prefix}.kv_a_proj.weight", (topology.latent, hidden), "linear")
        yield WeightSpec(f"{prefix}.kv_b_proj.weight", (2 * width, topology.latent), "linear")
    else:
        for part, rows in (("q", width), ("k", key), ("v", key)):
            yield WeightSpec(f"{prefix}.{part}_proj.weight", (rows, hidden), "linear")
            if topology.bias:
                yield WeightSpec(f"{prefix}.{part}_proj.bias", (rows,), "bias")
    yield WeightSpec(f"{prefix}.o_proj.weight", (hidden, width), "linear")
    if topology.sinks:
        yield WeightSpec(f"{prefix}.sinks", (topology.heads,), "bias")
    if topology.kv_scales:
        yield WeightSpec(f"{prefix}.k_scale", (1,), "buffer", torch.float32)
        yield WeightSpec(f"{prefix}.v_scale", (1,), "buffer", torch.float32)


def _experts(topology: Topology, prefix: str) -> Iterator[WeightSpec]:
    hidden, width = topology.hidden, topology.expert_intermediate
    yield WeightSpec(f"{prefix}.gate.weight", (topology.experts, hidden), "router")
    if topology.correction_bias:
        name = f"{prefix}.gate.e_score_correction_bias"
        yield WeightSpec(name, (topology.experts,), "buffer", torch.float32)
    for expert in range(topology.experts):
        yield from _mlp(f"{prefix}.experts.{expert}", hidden, width, "expert")
    if topology.shared_expert:
        yield from _mlp(f"{prefix}.shared_experts", hidden, width, "linear")


def _mlp(prefix: str, hidden: int, width: int, kind: str) -> Iterator[WeightSpec]:
    yield WeightSpec(f"{prefix}.gate_proj.weight", (width, hidden), kind)
    yield WeightSpec(f"{prefix}.up_proj.weight", (width, hidden), kind)
    yield WeightSpec(f"{prefix}.down_proj.weight", (hidden, width), kind)
