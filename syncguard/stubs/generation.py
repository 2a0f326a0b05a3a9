"""Serving requests: prefill on top of cached prefixes, then decode, by a captured graph or not."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.stubs.build import StubRank
from syncguard.stubs.cache import BLOCK_TOKENS, EncoderCache, Prefix, PrefixCache, Sequences
from syncguard.stubs.functions import ROPE_LENGTH
from syncguard.stubs.graph import live, once
from syncguard.stubs.serve import Read, embed, forward
from syncguard.stubs.topology import Topology

__all__ = ["Server"]


class Server:
    """One replica at work.

    Args:
        topology: Of the engine.
        ranks: Of the replica.

    Attributes:
        prefixes: What is kept of earlier requests.
        encoded: Features kept of earlier requests.
        decode_read: What layers read while decoding.
    """

    def __init__(self, topology: Topology, ranks: Sequence[StubRank]) -> None:
        self.topology = topology
        self.ranks = list(ranks)
        self.prefixes = PrefixCache()
        self.encoded = EncoderCache()
        self.decode_read: Read = live

    def serve(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int, version: str
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """Sample continuations and score prompts and continuations.

        Args:
            prompts: Token ids, at least one each.
            tokens: How many to sample for each.
            seed: Of the samples.
            version: Of the weights, for what the caches keep.

        Raises:
            ValueError: A prompt is empty, too long, or holds what is no token.
        """
        self._check(prompts, tokens)
        if not prompts:
            return []
        lengths = [len(prompt) for prompt in prompts]
        found = [self.prefixes.find(prompt) for prompt in prompts]
        starts = [len(prefix.tokens) if prefix is not None else 0 for prefix in found]
        new = max(length - start for length, start in zip(lengths, starts, strict=True))
        room = max(max(starts) + new, max(lengths) + tokens)
        sequences = Sequences(self.topology, self.ranks, len(prompts), room)
        for row, prefix in enumerate(found):
            if prefix is not None:
                sequences.given(row, prefix.held)
        logits = self._prefill(prompts, starts, new, sequences, version)
        scores, last = [], []
        for row, prompt in enumerate(prompts):
            own = logits[row, : lengths[row] - starts[row]]
            scores.append(_scores(prompt, found[row], own))
            last.append(_last(found[row], own))
            self._keep(row, prompt, starts[row], scores[row], own, sequences, version)
        sampled, given = self._decode(torch.stack(last), lengths, tokens, seed, sequences)
        return [
            ([*prompt, *sampled[row].tolist()], torch.cat([scores[row], given[row]]).numpy())
            for row, prompt in enumerate(prompts)
        ]

    def _check(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        for number, prompt in enumerate(prompts):
            strange = [token for token in prompt if not 0 <= token < self.topology.vocab]
            if not prompt or strange or len(prompt) + tokens > ROPE_LENGTH:
                raise ValueError(
                    f"prompt {number}: expected 1 to {ROPE_LENGTH - tokens} tokens below "
                    f"{self.topology.vocab}, got {len(prompt)} tokens"
                    + (f", {strange[0]} among them" if strange else "")
                )

    def _prefill(
        self,
        prompts: Sequence[Sequence[int]],
        starts: Sequence[int],
        new: int,
        sequences: Sequences,
        version: str,
    ) -> torch.Tensor:
        """Logits of the prompts' tokens that no prefix covers, float32 [batch, new, vocab]."""
        if not new:
            return torch.empty(len(prompts), 0, self.topology.vocab)
        tokens = torch.zeros(len(prompts), new, dtype=torch.int64)
        for row, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            tokens[row, : len(prompt) - start] = torch.tensor(prompt[start:], dtype=torch.int64)
        positions = torch.tensor(starts)[:, None] + torch.arange(new)
        read = once(live)
        x = embed(self.ranks, tokens, read)
        for row, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
            if not start:
                self._encode(prompt[0], x[row, 0], version)
        return forward(self.topology, self.ranks, x, sequences, positions, read)

    def _encode(self, token: int, features: torch.Tensor, version: str) -> None:
        kept = self.encoded.find(token)
        if kept is None:
            self.encoded.keep(token, features, version)
        else:
            features.copy_(kept)

    def _keep(
        self,
        row: int,
        prompt: Sequence[int],
        start: int,
        scores: torch.Tensor,
        logits: torch.Tensor,
        sequences: Sequences,
        version: str,
    ) -> None:
        length = len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS
        if length > start:
            self.prefixes.keep(
                Prefix(
                    tuple(prompt[:length]),
                    version,
                    sequences.taken(row, length),
                    scores[: length - 1],
                    logits[length - start - 1],
                )
            )

    def _decode(
        self,
        last: torch.Tensor,
        lengths: Sequence[int],
        tokens: int,
        seed: int,
        sequences: Sequences,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sample, int64 [batch, tokens], with log-probabilities."""
        generator = torch.Generator().manual_seed(seed)
        noise = torch.empty(tokens, *last.shape).exponential_(generator=generator).log_()
        positions = torch.tensor(lengths)[:, None]
        read = once(self.decode_read)
        sampled: list[torch.Tensor] = []
        given: list[torch.Tensor] = []
        for step in range(tokens):
            if step:
                x = embed(self.ranks, sampled[-1], read)
                at = positions + (step - 1)
                last = forward(self.topology, self.ranks, x, sequences, at, read)[:, -1]
            logprobs = torch.log_softmax(last.double(), dim=-1)
            # The largest of log-probabilities less log exponential noise is a sample (Gumbel).
            sampled.append((logprobs - noise[step]).argmax(-1, keepdim=True))
            given.append(logprobs.gather(-1, sampled[-1]))
        if not sampled:
            return torch.empty(len(lengths), 0, dtype=torch.int64), torch.empty(len(lengths), 0)
        return torch.cat(sampled, dim=1), torch.cat(given, dim=1)


def _scores(prompt: Sequence[int], prefix: Prefix | None, logits: torch.Tensor) -> torch.Tensor:
    """Log-probability of each token of a prompt after the first, float64."""
    if prefix is not None:
        logits = torch.cat([prefix.logits[None], logits])
    start = len(prefix.tokens) if prefix is not None else 1
    actual = torch.tensor(prompt[start:], dtype=torch.int64)[:, None]
    logprobs = torch.log_softmax(logits[: actual.shape[0]].double(), dim=-1)
    scores = logprobs.gather(-1, actual)[:, 0]
    return torch.cat([prefix.scores, scores]) if prefix is not None else scores


def _last(prefix: Prefix | None, logits: torch.Tensor) -> torch.Tensor:
    if logits.shape[0]:
        return logits[-1]
    assert prefix is not None, "a prompt has a token"  # noqa: S101
    return prefix.logits
