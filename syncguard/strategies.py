"""Hypothesis strategies: topologies, awkward weights, buckets, and programs of syncs."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from hypothesis import strategies as st

from syncguard.programs import Op
from syncguard.stubs.topology import BLOCK, CHOICES, Topology
from syncguard.stubs.weights import initial_weights

__all__ = [
    "TRICKS",
    "histories",
    "partitions",
    "programs",
    "topologies",
    "tricky_weights",
]

_E4M3_MAX: Final = 448.0
_SMALLEST: Final = 2.0**-133
"""The smallest positive bfloat16."""
_OUTLIER: Final = 64.0


@st.composite
def topologies(draw: st.DrawFn, /, **fixed: Any) -> Topology:
    """Valid topologies of a stub: every layout, several ranks, experts, odd sizes.

    Args:
        draw: Given by Hypothesis.
        fixed: Fields that are not drawn; what depends on them is drawn to fit.
    """
    chosen: dict[str, Any] = {}

    def field(name: str, strategy: Callable[[], st.SearchStrategy[Any]]) -> Any:
        chosen[name] = fixed[name] if name in fixed else draw(strategy())
        return chosen[name]

    for name, values in CHOICES.items():
        field(name, lambda values=values: st.sampled_from(values))  # type: ignore[misc]
    for name in ("tied", "bias", "sinks", "kv_scales", "graph"):
        field(name, st.booleans)
    layers = field("layers", lambda: st.integers(1, 2))
    ranks = field("ranks", lambda: st.integers(1, 3))
    field("replicas", lambda: st.integers(1, 2))
    field("hidden", lambda: _blocks(1, 3))
    field("vocab", lambda: st.integers(max(2, ranks), 67))
    field("intermediate", lambda: _blocks(ranks, ranks + 2))
    field("latent", lambda: _blocks(1, 2))
    heads = field("heads", lambda: st.integers(1, 3).map(lambda each: each * ranks))
    field("head_dim", lambda: _head_dims(heads // ranks))
    field("kv_heads", lambda: st.sampled_from(_kv_heads(heads, ranks)))
    parallel = field("expert_parallel", st.booleans)
    fewest = ranks if parallel else 1
    experts = field("experts", lambda: st.just(0) | st.integers(fewest, fewest + 3))
    if experts:
        field("top_k", lambda: st.integers(1, min(3, experts)))
        field("shared_expert", st.booleans)
        field("correction_bias", st.booleans)
        field("dense_layers", lambda: st.integers(0, layers))
        field("redundant_experts", lambda: st.integers(0, 2))
        field("expert_intermediate", lambda: _blocks(ranks, ranks + 1))
    return Topology(**{**chosen, **fixed})


def _blocks(fewest: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(fewest, most).map(lambda count: count * BLOCK)


def _head_dims(heads: int) -> st.SearchStrategy[int]:
    """Even widths for which the columns of so many heads are whole blocks."""
    unit = math.lcm(2, BLOCK // math.gcd(BLOCK, heads))
    return st.integers(1, 2).map(lambda count: count * unit)


def _kv_heads(heads: int, ranks: int) -> list[int]:
    return [n for n in range(1, heads + 1) if not heads % n and (not n % ranks or not ranks % n)]


def _ties(block: torch.Tensor, power: int) -> torch.Tensor:
    """The largest element is 448 x 2^k exactly, the others lie midway between grid points."""
    block = block.clone()
    midway = 1 + (2 * torch.arange(block.numel()) + 1) % 16 / 16
    block[:] = torch.where(torch.arange(block.numel()) % 2 == 0, midway, -midway)
    block[-1] = _E4M3_MAX
    return block * 2.0**power


def _just_above(block: torch.Tensor, power: int) -> torch.Tensor:
    """The largest element is the first bfloat16 above 448 x 2^k."""
    block = block.clone()
    block[0] = (_E4M3_MAX + 2) * 2.0**power
    return block


TRICKS: Final[Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]]] = MappingProxyType(
    {
        "zeros": lambda block, power: torch.zeros_like(block),
        "negative zeros": lambda block, power: -torch.zeros_like(block),
        "subnormal": lambda block, power: torch.sign(block) * _SMALLEST * 2 ** (power % 4),
        "outlier": lambda block, power: torch.where(
            torch.arange(block.numel()) == power % block.numel(), _OUTLIER * block, block
        ),
        "equal": lambda block, power: block[:1].expand(block.shape),
        "ties": _ties,
        "just above": _just_above,
    }
)
"""What can be done to a block of 32 weights, given as bfloat16 with an exponent to use."""

_POWERS: Final = (-14, -13, -12, -11, -10)
"""448 times these powers of two are of the size of weights."""


@dataclass(frozen=True, slots=True)
class _Trick:
    name: str
    weight: int
    block: int
    power: int


_tricks: Final = st.builds(
    _Trick,
    st.sampled_from(tuple(TRICKS)),
    st.integers(0, 63),
    st.integers(0, 255),
    st.sampled_from(_POWERS),
)


@st.composite
def tricky_weights(draw: st.DrawFn, topology: Topology) -> dict[str, torch.Tensor]:
    """Checkpoints for a stub learner: random weights, a few of whose blocks are awkward.

    Ties at 448 x 2^k and just above, blocks of zeros and of negative zeros, subnormal numbers,
    single outliers, equal elements.
    """
    weights = initial_weights(topology, draw(st.integers(0, 999)))
    names = list(weights)
    for trick in draw(st.lists(_tricks, max_size=6)):
        name = names[trick.weight % len(names)]
        _play(weights[name], trick)
    return weights


def _play(weight: torch.Tensor, trick: _Trick) -> None:
    flat = weight.view(-1)
    count = max(1, flat.numel() // BLOCK)
    block = flat[trick.block % count * BLOCK :][:BLOCK]
    block.copy_(TRICKS[trick.name](block.float(), trick.power))


@st.composite
def partitions(draw: st.DrawFn, names: Sequence[str]) -> list[list[str]]:
    """The names in any order, in buckets of any size but 0."""
    order = draw(st.permutations(names))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(names) - 1)), max_size=8)))
    edges = [0, *cuts, len(order)]
    parts = [order[start:stop] for start, stop in itertools.pairwise(edges)]
    return [list(part) for part in parts if part]


_poisons: Final = st.sampled_from((0, 0xA5, 0x5A))
_small: Final = st.integers(1, 9)
_none: Final = st.just(0)


def _ops(name: str, values: st.SearchStrategy[int] = _none) -> st.SearchStrategy[Op]:
    return st.builds(Op, st.just(name), values)


@st.composite
def histories(draw: st.DrawFn, syncs: int = 3) -> list[Op]:
    """Legal programs: whole syncs in any order and bucketing, and what may happen between them.

    Args:
        draw: Given by Hypothesis.
        syncs: The largest number of syncs.
    """
    program: list[Op] = []
    for _ in range(draw(st.integers(1, syncs))):
        program += draw(st.lists(_between, max_size=3))
        program += [Op("wake"), draw(_ops("open", _poisons))]  # a wake of an engine that is awake
        program += draw(st.lists(_ops("send", _small) | _ops("reorder", _small), max_size=4))
        program += [Op("last"), Op("finish")]
    return [*program, *draw(st.lists(_between, max_size=2))]


@st.composite
def programs(draw: st.DrawFn, length: int = 12) -> list[Op]:
    """Any programs, legal or not."""
    return draw(st.lists(_anything, max_size=length))


_between: Final = st.one_of(
    _ops("serve"),
    _ops("train", st.integers(0, 3)),
    _ops("finalize"),
    _ops("capture"),
    _ops("rebalance", _small),
    _ops("sleep", st.integers(1, 2)),
    _ops("wake"),
)
_anything: Final = st.one_of(
    _ops("open", _poisons),
    _ops("send", _small),
    _ops("last"),
    _ops("finish"),
    _between,
    _ops("reorder", _small),
    _ops("resend", _small),
    _ops("drop", _small),
    _ops("fail"),
)
