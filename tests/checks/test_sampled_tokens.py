"""C6 judged on tokens: whether they were drawn by the probabilities that are told of them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from syncguard.checks.judgement import Judgement
from syncguard.checks.sampled_tokens import sampled_tokens
from syncguard.observations import Alternatives, Samples
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import a_learner_layer

LAYERS = [a_learner_layer("q"), a_learner_layer("norm", "bf16", "norm")]
TEMPERATURES = (0.25, 0.5, 0.75, 1.5, 2.0, 4.0, math.inf)
PROMPT, NEW = 3, 16


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def judged(
    draw_at: float,
    *,
    seed: int = 0,
    vocabulary: int = 64,
    spread: float = 2.0,
    sequences: int = 8,
    learner_off: float = 0.0,
    told_at: float = 1.0,
) -> Judgement:
    """Tokens drawn at a temperature from random logits; the learner's may be others."""
    random = np.random.default_rng(seed)
    shape = (sequences, PROMPT + NEW - 1, vocabulary)
    logits = spread * random.standard_normal(shape)
    learner = logits + learner_off * random.standard_normal(shape)
    drawn = log_softmax(logits / draw_at if draw_at else logits * 1e6)
    picked = (drawn + random.gumbel(size=shape)).argmax(axis=-1)

    def of(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.take_along_axis(values, picked[..., None], axis=-1).reshape(-1)

    told = of(log_softmax(logits / told_at))
    others = np.stack([of(log_softmax(learner / each)) for each in TEMPERATURES], axis=-1)
    numbers = tuple((0, *row.tolist()) for row in picked)
    samples = Samples(numbers, told, told, told, told, True, PROMPT)
    return sampled_tokens(samples, Alternatives(TEMPERATURES, others), LAYERS)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocabulary=st.integers(2, 200),
    spread=st.floats(0, 12),
    learner_off=st.floats(0, 5),
    told_at=st.sampled_from((0.5, 1.0, 2.0)),
)
def test_tokens_that_are_drawn_as_told_pass(
    seed: int, vocabulary: int, spread: float, learner_off: float, told_at: float
) -> None:
    """Whatever the policy is, and however far the learner's is from it."""
    fields: dict[str, Any] = {"vocabulary": vocabulary, "spread": spread, "seed": seed}
    judgement = judged(told_at, learner_off=learner_off, told_at=told_at, **fields)
    assert judgement.status is Status.PASS
    assert judgement.coverage == Coverage(2, 2)
    assert judgement.message == "128 tokens follow the probabilities that were told of them"


@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0, 5))
def test_the_expected_ratio_is_one(seed: int, spread: float) -> None:
    """What makes it an e-value; by every token that one draw can give."""
    random = np.random.default_rng(seed)
    told = log_softmax(spread * random.standard_normal(9))
    learner = spread * random.standard_normal(9)
    expected = 0.0
    for token, logprob in enumerate(told):
        others = [[log_softmax(learner / each)[token] for each in TEMPERATURES]]
        scores = np.array([logprob])
        samples = Samples(((0, token),), scores, scores, scores, scores, True, 1)
        judgement = sampled_tokens(samples, Alternatives(TEMPERATURES, np.array(others)), LAYERS)
        assert judgement.measured is not None
        expected += math.exp(logprob + judgement.measured)
    assert expected == pytest.approx(1)


@pytest.mark.parametrize("temperature", [0.0, 0.25, 0.5, 2.0, 4.0, math.inf])
@pytest.mark.parametrize("learner_off", [0.0, 0.1])
def test_tokens_of_another_temperature_fail(temperature: float, learner_off: float) -> None:
    judgement = judged(temperature, learner_off=learner_off)
    assert judgement.status is Status.FAIL
    assert judgement.measured is not None
    assert judgement.bound is not None
    assert judgement.measured > judgement.bound == pytest.approx(math.log(1e9))


def test_a_failure_says_what_was_told_and_what_fits() -> None:
    judgement = one_token(told=-30.123, others=(-25.0, -2.0))
    assert judgement.coverage == Coverage(2, 2)
    assert judgement.message == (
        "tokens are not drawn by the probabilities that are told of them\n"
        "  where: 1 token of 1 sequence\n"
        "  expected: at most 20.7 nats for any other way to draw them\n"
        "  got: 27.4 nats, the most for a temperature of 3; told of a token are 30.1 nats on "
        "average\n"
        "  likely cause: the sampler applies a temperature, a mask or a penalty that was not asked "
        "for, or that nothing has written, after it has taken the log-probabilities\n"
        "  what to do: compare greedy and sampled requests; leave speculative decoding and custom "
        "samplers out one by one"
    )
    assert "where: 128 tokens of 8 sequences" in judged(4.0).message


def test_the_bound_itself_passes() -> None:
    bound = math.log(1e9)
    at = one_token(told=-bound, others=(0.0,))
    assert (at.status, at.measured, at.bound) == (Status.PASS, bound, bound)
    over = one_token(told=math.nextafter(-bound, -math.inf), others=(0.0,))
    assert (over.status, over.bound) == (Status.FAIL, bound)


def one_token(told: float, others: tuple[float, ...]) -> Judgement:
    scores = np.array([told])
    samples = Samples(((0, 1),), scores, scores, scores, scores, True, 1)
    temperatures = tuple(float(2 + number) for number in range(len(others)))
    return sampled_tokens(samples, Alternatives(temperatures, np.array([others])), LAYERS)


def test_prompts_are_nobodys_draw() -> None:
    told = np.array([-90.0, -90.0, -1.0])
    samples = Samples(((0, 1, 2, 3),), told, told, told, told, True, PROMPT)
    others = Alternatives((2.0,), np.array([[-1.0], [-1.0], [-1.0]]))
    judgement = sampled_tokens(samples, others, LAYERS)
    assert judgement.status is Status.PASS
    assert judgement.measured == pytest.approx(0)
    assert judgement.message.startswith("1 token follow")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["told", "other"])
def test_what_is_no_number_is_not_judged(bad: float, side: str) -> None:
    told, other = np.array([-1.0, -1.0, -1.0]), np.full((3, 1), -1.0)
    (told if side == "told" else other)[-1] = bad
    samples = Samples(((0, 1, 2, 3),), told, told, told, told, True, PROMPT)
    judgement = sampled_tokens(samples, Alternatives((2.0,), other), LAYERS)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "there are probabilities that are no numbers"


def test_nothing_sampled_and_a_learner_that_tells_no_alternatives() -> None:
    none = np.zeros(0)
    empty = Samples((), none, none, none, none, True, PROMPT)
    judgement = sampled_tokens(empty, None, LAYERS)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "the engine sampled nothing"
    one = np.zeros(1)
    some = Samples(((0, 1),), one, one, one, one, True, 1)
    silent = sampled_tokens(some, None, LAYERS)
    assert (silent.status, silent.reason) == (Status.NOT_RUN, Reason.NOT_APPLICABLE)
    assert "does not tell its policy at other temperatures" in silent.message
