"""Keys and values: those of running sequences, and those kept by prefix for later requests."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from syncguard.stubs.topology import Topology

__all__ = ["BLOCK_TOKENS", "EncoderCache", "Prefix", "PrefixCache", "Sequences"]

BLOCK_TOKENS: Final = 4
"""Prefixes are kept in whole blocks of so many tokens."""

_PREFIXES: Final = 64


class Sequences:
    """Keys and values of running sequences, per rank and layer.

    Args:
        topology: Of the engine.
        ranks: Of one replica.
        batch: Number of sequences.
        length: Room for so many tokens each.
    """

    def __init__(self, topology: Topology, ranks: Sequence[Any], batch: int, length: int) -> None:
        if topology.attention == "mla":
            heads, width = 1, topology.latent
        else:
            heads = max(1, topology.kv_heads // topology.ranks)
            width = topology.head_dim
        self.length = length
        shape = (batch, length, heads, width)
        self._held = {
            (rank.number, layer): (
                torch.zeros(shape, dtype=torch.bfloat16),
                torch.zeros(shape, dtype=torch.bfloat16),
            )
            for rank in ranks
            for layer in range(topology.layers)
        }

    def of(self, rank: Any, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer on one rank, [batch, length, heads, width]."""
        return self._held[rank.number, layer]

    def taken(self, row: int, length: int) -> list[torch.Tensor]:
        """A copy of the first positions of one sequence."""
        return [part[row, :length].clone() for pair in self._held.values() for part in pair]

    def given(self, row: int, kept: Sequence[torch.Tensor]) -> None:
        """Put a copy back."""
        parts = (part for pair in self._held.values() for part in pair)
        for part, values in zip(parts, kept, strict=True):
            part[row, : values.shape[0]] = values


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """What was computed for a prefix.

    Attributes:
        tokens: The prefix.
        version: Of the weights that computed it.
        held: Keys and values.
        scores: Log-probability of each token after the first.
        logits: Of the next token.
    """

    tokens: tuple[int, ...]
    version: str
    held: list[torch.Tensor]
    scores: torch.Tensor
    logits: torch.Tensor


class PrefixCache:
    """Prefixes of whole blocks, the least recently used given up first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], Prefix] = OrderedDict()

    def find(self, prompt: Sequence[int]) -> Prefix | None:
        """The longest kept prefix of a prompt."""
        for length in range(len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS, 0, -BLOCK_TOKENS):
            found = self._kept.get(tuple(prompt[:length]))
            if found is not None:
                self._kept.move_to_end(found.tokens)
                return found
        return None

    def keep(self, prefix: Prefix) -> None:
        """Keep a prefix."""
        self._kept[prefix.tokens] = prefix
        while len(self._kept) > _PREFIXES:
            self._kept.popitem(last=False)

    def reset(self) -> None:
        """Give up everything."""
        self._kept.clear()

    def versions(self) -> dict[str, str]:
        """The version of the weights behind each entry, by its tokens."""
        return {" ".join(map(str, tokens)): kept.version for tokens, kept in self._kept.items()}


class EncoderCache:
    """Embedded first tokens of requests, as an engine keeps the features of images."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[str, torch.Tensor]] = {}

    def find(self, token: int) -> torch.Tensor | None:
        """The features of a token, [hidden]."""
        found = self._kept.get(token)
        return found[1] if found is not None else None

    def keep(self, token: int, features: torch.Tensor, version: str) -> None:
        """Keep the features of a token."""
        self._kept[token] = version, features.clone()

    def reset(self) -> None:
        """Give up everything."""
        self._kept.clear()

    def versions(self) -> dict[str, str]:
        """The version of the weights behind each entry, by its token."""
        return {str(token): version for token, (version, _) in self._kept.items()}
