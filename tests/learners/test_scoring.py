import re

import numpy as np
import pytest
import torch

from syncguard.learners.scoring import score, tempered, token_logprobs

VOCABULARY = 11


def forward(tokens: torch.Tensor) -> torch.Tensor:
    """Logits that depend on all tokens so far, as in a causal model."""
    seen = torch.cumsum(tokens.double() + 1, dim=-1)
    return torch.sin(seen[..., None] * torch.arange(1, VOCABULARY + 1).double())


def one_by_one(sequence: list[int]) -> list[float]:
    expected = []
    for position in range(1, len(sequence)):
        logits = forward(torch.tensor([sequence[:position]]))[0, -1].numpy()
        odds = np.exp(logits)
        expected.append(float(np.log(odds[sequence[position]] / odds.sum())))
    return expected


def test_padded_batches_score_as_each_sequence_alone() -> None:
    generator = np.random.default_rng(5)
    sequences = [generator.integers(0, VOCABULARY, length).tolist() for length in (7, 2, 30, 7, 19)]
    for sequence, scores in zip(sequences, score(forward, sequences, VOCABULARY), strict=True):
        assert scores.dtype == np.float64
        np.testing.assert_allclose(scores, one_by_one(sequence), rtol=1e-12)


def test_other_temperatures_divide_the_logits() -> None:
    generator = np.random.default_rng(6)
    sequences = [generator.integers(0, VOCABULARY, length).tolist() for length in (7, 1, 30)]
    temperatures = (0.5, 1.0, 1e6)
    found = tempered(forward, sequences, VOCABULARY, temperatures)
    assert [scores.shape for scores in found] == [(6, 3), (0, 3), (29, 3)]
    assert all(scores.dtype == np.float64 for scores in found)
    for column, temperature in enumerate(temperatures):
        cooled = score(lambda tokens: forward(tokens) / temperature, sequences, VOCABULARY)  # noqa: B023
        for scores, expected in zip(found, cooled, strict=True):
            np.testing.assert_allclose(scores[:, column], expected, atol=1e-5)


def test_a_token_that_is_masked_has_no_probability_at_any_temperature() -> None:
    def masked(tokens: torch.Tensor) -> torch.Tensor:
        logits = forward(tokens)
        logits[..., 0] = -torch.inf
        return logits

    (scores,) = tempered(masked, [[1, 2, 0]], VOCABULARY, (1.0, 1e6))
    np.testing.assert_allclose(scores[0, 1], -np.log(VOCABULARY - 1), atol=1e-5)
    assert (scores[1] == -np.inf).all()


def test_batches_are_bounded() -> None:
    sizes = []

    def counted(tokens: torch.Tensor) -> torch.Tensor:
        sizes.append(tokens.numel())
        return forward(tokens)

    scores = score(counted, [[1] * 200] * 12, VOCABULARY)
    assert max(sizes) <= 1024
    assert sum(sizes) == 12 * 200
    assert all(row.shape == (199,) for row in scores)


def test_nothing_to_score_gives_nothing() -> None:
    assert [row.size for row in score(forward, [[], [3], [3, 4]], VOCABULARY)] == [0, 0, 1]


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_strange_token_is_named(token: int) -> None:
    text = f"sequence 1: expected tokens from 0 to 10, got {token}"
    with pytest.raises(ValueError, match=re.escape(text)):
        score(forward, [[1, 2], [3, token]], VOCABULARY)


def test_logprobs_of_logits_with_a_known_answer() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]).double())
    scores = token_logprobs(logits + 3, torch.tensor([0, 1]))
    np.testing.assert_allclose(scores.exp(), [0.25], rtol=1e-12)
