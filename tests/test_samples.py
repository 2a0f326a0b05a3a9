"""What the engine samples, scored by both sides, and by the learner at other temperatures."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from syncguard.errors import Unsupported
from syncguard.observing import View
from tests.checks.fakes import VOCABULARY
from tests.observed import synced


def test_an_engine_that_answers_less_than_it_was_asked_is_no_sample() -> None:
    _, engine, view = synced()
    generate = engine.generate
    engine.generate = lambda *given: generate(*given)[:1]  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="8 sequences of 24 tokens were asked for, and 1 came"):
        view.get("samples")


def test_both_sides_score_what_the_engine_samples() -> None:
    learner, engine, view = synced()
    samples = view.get("samples")
    assert len(samples.sequences) == 8
    assert {len(sequence) for sequence in samples.sequences} == {24}
    assert samples.engine.shape == samples.float32.shape == (8 * 23,)
    assert np.allclose(samples.engine, samples.learner)
    assert np.allclose(samples.dequantized, samples.learner + 0.1)
    assert samples.rounds_activations
    modes = [call for call in learner.calls if call.startswith("logprobs")]
    assert modes == ["logprobs forward", "logprobs dequantized", "logprobs float32"]
    assert engine.calls.count("generate") == 1


def test_prompts_are_of_the_vocabulary_and_follow_the_seed() -> None:
    first, second = (synced()[2].get("samples").sequences for _ in range(2))
    assert first == second
    assert {token for sequence in first for token in sequence} <= set(range(VOCABULARY))
    _, _, view = synced()
    other = View(view.learner, view.engine, replace(view.context, seed=4)).get("samples")
    assert other.sequences != first


@pytest.mark.parametrize(
    ("learner_grid", "activations", "rounds"),
    [
        ("mxfp8", "mxfp8", True),
        ("int8", "int8", True),
        ("mxfp8", "int8", False),
        ("mxfp8", "bf16", False),
        ("bf16", "mxfp8", False),
        ("bf16", "bf16", False),
    ],
)
def test_activations_are_rounded_if_both_sides_round_them(
    learner_grid: str, activations: str, rounds: bool
) -> None:
    learner, engine, view = synced()
    layers = [replace(row, grid=learner_grid) for row in learner.layers()]
    learner.layers = lambda: layers  # type: ignore[method-assign]
    rows = [
        replace(engine.layers()[0], parts=()),
        replace(engine.layers()[1], activations=activations),
    ]
    engine.layers = lambda: rows  # type: ignore[method-assign]
    assert view.get("samples").rounds_activations is rounds


def test_sides_that_score_different_tokens_are_an_error() -> None:
    learner, _, view = synced()
    some = [np.zeros(23)]
    learner.logprobs = lambda sequences, *, mode="": some  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="scored different numbers of tokens"):
        view.get("samples")


def test_a_failed_sync_must_not_serve() -> None:
    _, engine, view = synced()
    view.context.record.error = "ValueError"
    with pytest.raises(Unsupported, match="ended with an error, so the engine must not serve"):
        view.get("samples")
    assert "generate" not in engine.calls


def test_an_answer_to_another_prompt_is_no_sample() -> None:
    _, engine, view = synced()
    answer = engine.generate

    def first_for_all(prompts: Any, tokens: int, seed: int) -> Any:
        return [answer(prompts, tokens, seed)[0]] * len(prompts)

    engine.generate = first_for_all  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="answer 1 does not begin with prompt 1"):
        view.get("samples")


def test_alternatives_are_of_the_sampled_tokens() -> None:
    learner, _, view = synced()
    assert view.get("alternatives") is None  # this one does not tell them
    asked = {}

    def tempered(sequences: Any, temperatures: Any) -> list[Any]:
        asked["sequences"] = sequences
        return [np.zeros((len(each) - 1, len(temperatures))) for each in sequences]

    learner.tempered = tempered  # type: ignore[attr-defined]
    _, _, view = synced()
    view.learner = learner
    found = view.get("alternatives")
    assert asked["sequences"] == view.get("samples").sequences
    assert found.logprobs.shape == (8 * 23, len(found.temperatures))
    assert 0 < min(found.temperatures) < 1 < max(found.temperatures)


def test_alternatives_of_too_few_tokens_are_none() -> None:
    learner, _, view = synced()
    learner.tempered = lambda sequences, temperatures: [np.zeros((3, len(temperatures)))]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="the learner told 3 tokens of 8 sequences"):
        view.get("alternatives")
