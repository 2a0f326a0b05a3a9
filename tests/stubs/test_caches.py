"""What is kept of earlier requests, and what serving does with it."""

import numpy as np
import pytest

from syncguard.stubs import StubEngine, Topology
from syncguard.stubs.cache import EncoderCache, Prefix, PrefixCache
from tests.stubs.helpers import pair, policy_gap, skipping, sync

_TOPOLOGY = Topology(layers=1)
_LONG = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]


def _scores(
    engine: StubEngine, prompt: list[int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    [(_, scores)] = engine.generate([prompt], 3, seed=1)
    return scores


def test_cached_prefix_changes_no_score() -> None:
    learner, engine = pair(Topology(layers=1, ranks=2, sinks=True))
    sync(learner, engine)
    cold = [_scores(engine, _LONG[0][:length]) for length in (3, 4, 8, 9, 10)]
    warm = [_scores(engine, _LONG[0][:length]) for length in (3, 4, 8, 9, 10)]
    for one, other in zip(cold, warm, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)
    mixed = engine.generate([[9, 9], _LONG[0], _LONG[0][:4]], 3, seed=1)
    wanted = learner.logprobs([sequence for sequence, _ in mixed])
    for (_, scores), mine in zip(mixed, wanted, strict=True):
        np.testing.assert_allclose(scores, mine, atol=0.05)


def test_entries_tell_their_version_until_the_next_sync() -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine, 7)
    engine.generate(_LONG, 1, seed=0)
    assert engine.cache_versions() == {
        "replica0 prefix 1 2 3 4 5 6 7 8": "7",
        "replica0 encoder 1": "7",
    }
    sync(learner, engine, 8)
    assert engine.cache_versions() == {}


@pytest.mark.parametrize("kind", ["prefix", "encoder"])
def test_stale_cache_is_served(kind: str) -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    engine.generate(_LONG, 1, seed=0)
    learner.perturb(0.5, seed=1)
    with engine.seams()["cache"][f"replica0 {kind}.reset"].wrap(skipping):
        sync(learner, engine, 2)
    assert set(engine.cache_versions().values()) == {"1"}
    assert policy_gap(learner, engine, prompts=_LONG) > 0.1
    engine.reset_caches()
    assert policy_gap(learner, engine, prompts=_LONG) < 0.05


def test_longest_prefix_is_found_and_the_oldest_given_up() -> None:
    cache = PrefixCache()
    empty = np.zeros(0)
    for number in range(70):
        tokens = (number, 0, 0, 0)
        cache.keep(Prefix(tokens, "1", [], empty, empty))  # type: ignore[arg-type]
    assert cache.find([0, 0, 0, 0]) is None
    found = cache.find([69, 0, 0, 0, 5])
    assert found is not None
    assert found.tokens == (69, 0, 0, 0)
    longer = Prefix((*found.tokens, 5, 6, 7, 8), "2", [], empty, empty)  # type: ignore[arg-type]
    cache.keep(longer)
    assert cache.find([69, 0, 0, 0, 5, 6, 7, 8, 9]) is longer
    assert cache.find([69, 0, 0, 0, 5]) is found
    cache.reset()
    assert cache.versions() == {}
    assert EncoderCache().find(3) is None


def test_generation_is_deterministic_by_seed() -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    runs = [[s for s, _ in engine.generate([[1, 2]] * 3, 12, seed)] for seed in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]
    assert len({tuple(sequence) for sequence in runs[0]}) == 3


def test_samples_follow_the_probabilities() -> None:
    learner, engine = pair(_TOPOLOGY)
    sync(learner, engine)
    answers = engine.generate([[1]] * 64, 16, seed=0)
    drawn = np.concatenate([scores for _, scores in answers])
    # The mean log-probability of samples is minus the entropy, and 4.56 nats are uniform.
    assert 2 < -drawn.mean() < 4.5


@pytest.mark.parametrize("prompt", [[], [96], [-1], [1] * 250])
def test_prompts_that_cannot_be_served(prompt: list[int]) -> None:
    _, engine = pair(_TOPOLOGY)
    with pytest.raises(ValueError, match="prompt 1: expected 1 to 246 tokens below 96, got"):
        engine.generate([[1], prompt], 10, seed=0)


def test_nothing_to_do() -> None:
    _, engine = pair(_TOPOLOGY)
    assert engine.generate([], 4, seed=0) == []
    [(sequence, scores)] = engine.generate([[1, 2, 3]], 0, seed=0)
    assert sequence == [1, 2, 3]
    assert scores.shape == (2,)
