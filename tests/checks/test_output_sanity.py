"""C6 judged on arrays of log-probabilities."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks import Judgement
from syncguard.checks.output_sanity import finite, gross_divergence, paired_logprobs
from syncguard.observations import Samples
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import a_learner_layer, is_complete, parts_of

LAYERS = [a_learner_layer("q"), a_learner_layer("norm", "bf16", "norm")]
CHECKS = (finite, gross_divergence, paired_logprobs)
NOT_FINITE = (math.nan, math.inf, -math.inf)


def samples(**fields: Any) -> Samples:
    """Two sequences of four and three tokens; float32 and dequantized are 0.1 apart."""
    scores = np.array([-1.0, -2.0, -0.5, -3.0, -1.5])
    given = {
        "sequences": ((1, 2, 3, 4), (5, 6, 7)),
        "engine": scores,
        "learner": scores,
        "dequantized": scores + 0.1,
        "float32": scores,
        "rounds_activations": True,
        "prompt_tokens": 1,
    }
    return Samples(**{**given, **fields})


def off(by: float) -> Samples:
    return samples(engine=samples().engine + by)


@pytest.mark.parametrize("check", CHECKS)
def test_a_healthy_sampler_passes_for_all_layers(check: Callable[..., Judgement]) -> None:
    judgement = check(samples(), LAYERS)
    assert judgement.status is Status.PASS
    assert judgement.coverage == Coverage(2, 2)
    assert judgement.measured == 0


@pytest.mark.parametrize("check", CHECKS)
def test_no_samples_are_missing_input(check: Callable[..., Judgement]) -> None:
    none = np.zeros(0)
    empty = samples(sequences=(), engine=none, learner=none, dequantized=none, float32=none)
    judgement = check(empty, LAYERS)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "the engine sampled nothing"


def test_finite_passes_are_told_with_their_number() -> None:
    assert finite(samples(), LAYERS).message == "5 log-probabilities are finite"
    one = finite(samples(engine=np.zeros(1)), LAYERS)
    assert one.message == "1 log-probability is finite"
    assert one.bound == 0


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize(
    ("index", "where"),
    [
        (0, "sequence 0, token 1"),
        (2, "sequence 0, token 3"),
        (3, "sequence 1, token 1"),
        (4, "sequence 1, token 2"),
    ],
)
def test_one_score_that_is_not_finite_fails_and_is_placed(
    bad: float, index: int, where: str
) -> None:
    engine = samples().engine.copy()
    engine[index] = bad
    judgement = finite(samples(engine=engine), LAYERS)
    assert judgement.status is Status.FAIL
    assert (judgement.measured, judgement.bound) == (1, 0)
    assert judgement.coverage == Coverage(2, 2)
    told = parts_of(judgement)
    assert told["what"] == "1 of 5 log-probabilities are not finite"
    assert told["where"] == f"the first one at {where}"
    assert told["got"] == f"{bad:g}"
    assert is_complete(judgement)


def test_all_scores_that_are_not_finite_are_counted() -> None:
    judgement = finite(samples(engine=np.full(5, np.nan)), LAYERS)
    assert judgement.measured == 5
    assert "the first one at sequence 0, token 1" in judgement.message
    one = finite(samples(engine=np.full(1, np.nan)), LAYERS)
    assert parts_of(one)["what"] == "1 of 1 log-probability is not finite"


def test_a_score_beyond_all_sequences_is_placed_after_them() -> None:
    engine = np.array([0.0, 0, 0, 0, 0, np.nan])
    assert "sequence 2, token 1" in finite(samples(engine=engine), LAYERS).message
    assert "sequence 0, token 6" in finite(samples(engine=engine, sequences=()), LAYERS).message


def test_a_kl_of_one_nat_is_the_limit() -> None:
    # k3(d) = exp(-d) - 1 + d is 1 nat at d = 1.8414 and at d = -1.1462
    for gap, status in (
        (1.8414, Status.PASS),
        (1.8415, Status.FAIL),
        (-1.1461, Status.PASS),
        (-1.1462, Status.FAIL),
    ):
        judgement = gross_divergence(off(gap), LAYERS)
        assert judgement.status is status
        assert judgement.measured == pytest.approx(1, abs=3e-4)
        assert judgement.bound == 1


def test_the_limits_themselves_pass() -> None:
    gaps = 1.8414056604369606 + np.arange(-50, 50) * 2.0**-52
    (gap, *_) = gaps[np.expm1(-gaps) + gaps == 1]
    zero = np.zeros(1)
    judgement = gross_divergence(samples(engine=zero + gap, learner=zero), LAYERS)
    assert (judgement.status, judgement.measured) == (Status.PASS, 1)
    paired = samples(engine=zero + 1, learner=zero, dequantized=zero + 0.5)
    judgement = paired_logprobs(paired, LAYERS)
    assert (judgement.status, judgement.measured, judgement.bound) == (Status.PASS, 1, 1)


def test_a_learner_that_has_diverged_is_told_in_full() -> None:
    judgement = gross_divergence(samples(learner=np.full(5, np.nan)), LAYERS)
    assert judgement.status is Status.NOT_RUN
    told = parts_of(judgement)
    assert told["expected"] == "finite log-probabilities of the learner's forward"
    assert "the learner itself has diverged" in told["likely cause"]
    assert told["what to do"] == "look at the learner's own loss and weights first"


def test_a_small_kl_is_told_with_its_tokens() -> None:
    judgement = gross_divergence(off(0.2), LAYERS)
    assert judgement.message == "KL is 0.019 nats a token on 5 tokens"
    assert judgement.measured == pytest.approx(math.exp(-0.2) - 1 + 0.2)
    one = samples(engine=np.zeros(1), learner=np.zeros(1))
    assert gross_divergence(one, LAYERS).message == "KL is 0 nats a token on 1 token"


@settings(deadline=None)
@given(st.lists(st.floats(-30, 0), min_size=1, max_size=8), st.floats(-30, 30))
def test_the_estimate_is_never_negative(scores: list[float], gap: float) -> None:
    learner = np.array(scores)
    judgement = gross_divergence(samples(engine=learner + gap, learner=learner), LAYERS)
    assert judgement.measured is not None
    assert judgement.measured >= -1e-12


def test_another_policy_fails_in_full() -> None:
    judgement = gross_divergence(off(-2.5), LAYERS)
    told = parts_of(judgement)
    assert told["what"] == "the sampler serves another policy than the learner's"
    assert told["where"] == "5 tokens of 2 sequences that the engine sampled"
    assert told["expected"] == "a KL of at most 1 nat a token"
    assert told["got"] == "8.68 nats a token"
    assert is_complete(judgement)
    assert judgement.coverage == Coverage(2, 2)
    one = samples(engine=np.zeros(1) - 9, learner=np.zeros(1), sequences=((1, 2),))
    assert parts_of(gross_divergence(one, LAYERS))["where"].startswith("1 token of 1 sequence ")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("check", [gross_divergence, paired_logprobs])
@pytest.mark.parametrize("bad", [*NOT_FINITE, -1e6])
def test_a_sampler_that_is_not_finite_fails_without_a_warning(
    check: Callable[..., Judgement], bad: float
) -> None:
    engine = samples().engine.copy()
    engine[1] = bad
    assert check(samples(engine=engine), LAYERS).status is Status.FAIL


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize(
    ("check", "rounds", "fields"),
    [
        (gross_divergence, True, "learner"),
        (paired_logprobs, True, "learner"),
        (paired_logprobs, True, "dequantized"),
        (paired_logprobs, False, "float32"),
        (paired_logprobs, False, "dequantized"),
    ],
)
def test_a_learner_that_is_not_finite_proves_nothing_of_the_sampler(
    bad: float, check: Callable[..., Judgement], rounds: bool, fields: str
) -> None:
    values = samples().learner.copy()
    values[3] = bad
    judgement = check(samples(rounds_activations=rounds, **{fields: values}), LAYERS)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    told = parts_of(judgement)
    assert told["what"] == "there is nothing to compare the sampler with"
    assert told["expected"].startswith("finite log-probabilities of the learner's ")
    assert told["got"] == "NaN or infinity"


@pytest.mark.parametrize(("rounds", "unused"), [(True, "float32"), (False, "learner")])
def test_a_reference_that_is_not_used_may_be_anything(rounds: bool, unused: str) -> None:
    values = np.full(5, np.nan)
    judgement = paired_logprobs(samples(rounds_activations=rounds, **{unused: values}), LAYERS)
    assert judgement.status is Status.PASS


@pytest.mark.parametrize(
    ("rounds", "factor", "name"),
    [
        (True, 2, "the learner's forward"),
        (False, 3, "the learner's dequantized weights in float32"),
    ],
)
def test_the_bound_is_a_multiple_of_the_reference_effect(
    rounds: bool, factor: int, name: str
) -> None:
    limit = factor * 0.1
    inside = paired_logprobs(
        samples(engine=samples().engine + 0.999 * limit, rounds_activations=rounds), LAYERS
    )
    assert inside.status is Status.PASS
    assert inside.bound == pytest.approx(limit)
    assert inside.measured == pytest.approx(0.999 * limit)
    assert inside.message == f"mean difference to {name} is {0.999 * limit:.2g} on 5 tokens"
    beyond = paired_logprobs(
        samples(engine=samples().engine - 1.001 * limit, rounds_activations=rounds), LAYERS
    )
    assert beyond.status is Status.FAIL
    assert beyond.measured == pytest.approx(1.001 * limit)
    told = parts_of(beyond)
    assert told["what"] == "log-probabilities differ by more than a healthy pipeline explains"
    assert told["where"] == "5 tokens of 2 sequences that the engine sampled"
    assert told["expected"] == f"a mean difference to {name} of at most {limit:.3g}"
    assert told["got"] == f"{1.001 * limit:.3g}"
    assert is_complete(beyond)


def test_the_mean_of_magnitudes_counts() -> None:
    """Deviations of both signs must not cancel out."""
    engine = samples().engine + np.array([0.5, -0.5, 0.5, -0.5, 0.0])
    judgement = paired_logprobs(samples(engine=engine), LAYERS)
    assert judgement.measured == pytest.approx(0.4)
    spread = samples(dequantized=samples().learner + np.array([0.5, -0.5, 0.5, -0.5, 0]))
    assert paired_logprobs(spread, LAYERS).bound == pytest.approx(0.8)


@pytest.mark.parametrize(("gap", "status"), [(9e-5, Status.PASS), (2e-4, Status.FAIL)])
def test_exact_references_leave_room_for_float32_sums(gap: float, status: Status) -> None:
    """An unquantized float32 model: its references are equal, and no sampler equals them."""
    scores = samples().learner
    exact = samples(engine=scores + gap, dequantized=scores, rounds_activations=False)
    judgement = paired_logprobs(exact, LAYERS)
    assert (judgement.status, judgement.bound) == (status, 1e-4)


def test_one_token_is_told_in_the_singular() -> None:
    one = {name: np.zeros(1) for name in ("engine", "learner", "dequantized", "float32")}
    told = paired_logprobs(samples(sequences=((1, 2),), **one), LAYERS).message
    assert told == "mean difference to the learner's forward is 0 on 1 token"
