"""C6: the sampler draws tokens by the probabilities that it tells."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from syncguard.checks.judgement import Judgement, counted, failed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import Alternatives, LearnerLayer, Samples
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["sampled_tokens"]

_BOUND: Final = float(np.log(1e9))
"""Nats: chance alone gives more in at most one of 1e9 runs."""


@check("sampled-tokens", "C6")
def sampled_tokens(
    samples: Samples, alternatives: Alternatives | None, learner_layers: Sequence[LearnerLayer]
) -> Judgement:
    """Sampled tokens follow the probabilities that the sampler tells of them.

    An importance ratio is right only for tokens that were drawn by the probabilities in its
    denominator. A sampler that tells those and draws by others passes any comparison of
    log-probabilities. So the tokens are asked: by how much are they likelier under the learner's
    policy at another temperature, the mean over some, than by what was told. If they were drawn
    as told, the expectation of that ratio is 1, whatever the policies are, and by Markov's
    inequality it exceeds 1e9 once in 1e9 runs: there is no tolerance. (An e-value: Vovk, Wang:
    E-values: Calibration, combination and applications, 2021.)
    """
    if not samples.engine.size:
        return not_run(Reason.MISSING_INPUT, "the engine sampled nothing")
    if alternatives is None:
        return not_run(
            Reason.NOT_APPLICABLE, "the learner does not tell its policy at other temperatures"
        )
    drawn = _drawn(samples)
    told, other = samples.engine[drawn], alternatives.logprobs[drawn]
    if not (np.isfinite(told).all() and np.isfinite(other).all()):
        return not_run(Reason.MISSING_INPUT, "there are probabilities that are no numbers")
    gains = (other - told[:, None]).sum(axis=0)
    best = int(np.argmax(gains))
    evidence = float(gains[best] + np.log(np.mean(np.exp(gains - gains[best]))))
    everything = Coverage(len(learner_layers), len(learner_layers))
    tokens = counted(told.size, "token", "tokens")
    if evidence <= _BOUND:
        return passed(
            f"{tokens} follow the probabilities that were told of them",
            everything,
            measured=evidence,
            bound=_BOUND,
        )
    return failed(
        explain(
            "tokens are not drawn by the probabilities that are told of them",
            where=f"{tokens} of {counted(len(samples.sequences), 'sequence', 'sequences')}",
            expected=f"at most {_BOUND:.3g} nats for any other way to draw them",
            got=f"{evidence:.3g} nats, the most for a temperature of "
            f"{alternatives.temperatures[best]:g}; told of a token are "
            f"{-float(np.mean(told)):.3g} nats on average",
            cause="the sampler applies a temperature, a mask or a penalty that was not asked for, "
            "or that nothing has written, after it has taken the log-probabilities",
            todo="compare greedy and sampled requests; leave speculative decoding and custom "
            "samplers out one by one",
        ),
        everything,
        measured=evidence,
        bound=_BOUND,
    )


def _drawn(samples: Samples) -> NDArray[np.bool_]:
    """Which of all scored tokens the engine has sampled: those of prompts it has not."""
    own = [np.arange(1, len(each)) >= samples.prompt_tokens for each in samples.sequences]
    return np.concatenate(own)
