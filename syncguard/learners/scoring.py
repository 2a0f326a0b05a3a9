"""Log-probabilities of given tokens under a causal language model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["score", "tempered", "token_logprobs"]

_TOKENS_PER_BATCH: Final = 1024  # bounds the logits: 100 MB in bf16 for 49,152 tokens


def score(
    forward: Callable[[torch.Tensor], torch.Tensor],
    sequences: Sequence[Sequence[int]],
    vocabulary: int,
) -> list[NDArray[np.float64]]:
    """Score sequences of any lengths.

    Sequences are padded on the right and batched: in a causal model, what follows a token does
    not change its logits.

    Args:
        forward: Takes int64 [batch, length], gives logits [batch, length, vocabulary].
        sequences: Token ids.
        vocabulary: How many tokens there are.

    Returns:
        Per sequence the log-probability of each token after the first (nats).

    Raises:
        ValueError: A token is not in the vocabulary.
    """
    scores: list[NDArray[np.float64]] = [np.zeros(0)] * len(sequences)
    for number, logits, tokens in _predicted(forward, sequences, vocabulary):
        scores[number] = token_logprobs(logits.double(), tokens).numpy()
    return scores


def tempered(
    forward: Callable[[torch.Tensor], torch.Tensor],
    sequences: Sequence[Sequence[int]],
    vocabulary: int,
    temperatures: Sequence[float],
) -> list[NDArray[np.float64]]:
    """Score sequences by the policy at other temperatures.

    Args:
        forward: As for `score`.
        sequences: Token ids.
        vocabulary: How many tokens there are.
        temperatures: What logits are divided by.

    Returns:
        Per sequence the log-probabilities of each token after the first, [tokens, temperatures].

    Raises:
        ValueError: A token is not in the vocabulary.
    """
    scores = [np.zeros((0, len(temperatures)))] * len(sequences)
    for number, logits, tokens in _predicted(forward, sequences, vocabulary):
        at = [token_logprobs(logits.float() / each, tokens) for each in temperatures]
        scores[number] = torch.stack(at, dim=-1).double().numpy()
    return scores


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probability of each token after the first, [..., length - 1], in the logits' dtype.

    Args:
        logits: [..., length, vocabulary].
        tokens: int64 [..., length].
    """
    predicted, actual = logits[..., :-1, :], tokens[..., 1:]
    chosen = predicted.gather(-1, actual[..., None])[..., 0]
    return chosen - predicted.logsumexp(-1)


def _predicted(
    forward: Callable[[torch.Tensor], torch.Tensor],
    sequences: Sequence[Sequence[int]],
    vocabulary: int,
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Number, logits and tokens of each sequence that has something to score."""
    for number, sequence in enumerate(sequences):
        strange = [token for token in sequence if not 0 <= token < vocabulary]
        if strange:
            raise ValueError(
                f"sequence {number}: expected tokens from 0 to {vocabulary - 1}, got {strange[0]}"
            )
    for batch in _batches([len(sequence) for sequence in sequences]):
        longest = max(len(sequences[number]) for number in batch)
        tokens = torch.zeros(len(batch), longest, dtype=torch.int64)
        for row, number in enumerate(batch):
            tokens[row, : len(sequences[number])] = torch.tensor(sequences[number])
        with torch.no_grad():
            logits = forward(tokens)
        for row, number in enumerate(batch):
            length = len(sequences[number])
            yield number, logits[row, :length], tokens[row, :length]


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if lengths[number] < 2:
            continue  # nothing to score
        if batch and (len(batch) + 1) * lengths[number] > _TOKENS_PER_BATCH:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
