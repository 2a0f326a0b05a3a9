"""C6: the sampler's probabilities are finite and its divergence from the learner is bounded.

Every weight of the model takes part in a forward, so an answer covers all of them at once.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from syncguard.checks.judgement import Judgement, counted, failed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import LearnerLayer, Samples
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["finite", "gross_divergence", "paired_logprobs"]

_GROSS_KL: Final = 1.0
_SAME_PIPELINE: Final = 2.0
_NOISE: Final = 3.0
_RESOLUTION: Final = 1e-4
"""Nats that float32 sums of logits up to 100 in another order may differ by, with a margin."""


@check("finite", "C6")
def finite(samples: Samples, learner_layers: Sequence[LearnerLayer]) -> Judgement:
    """All log-probabilities that the engine gave are finite.

    A NaN fails the comparisons with the learner too; this tells it from a number that is too
    large, and needs no learner.
    """
    values = samples.engine
    if not values.size:
        return _nothing_sampled()
    bad = np.flatnonzero(~np.isfinite(values))
    if not bad.size:
        return passed(
            f"{counted(values.size, 'log-probability is', 'log-probabilities are')} finite",
            _whole(learner_layers),
            measured=0,
            bound=0,
        )
    return failed(
        explain(
            f"{bad.size} of {counted(values.size, 'log-probability is', 'log-probabilities are')} "
            "not finite",
            where=f"the first one at {_position(samples, int(bad[0]))}",
            expected="finite numbers",
            got=f"{values[bad[0]]:g}",
            cause="uninitialised scales or weights, a quantized lm_head that receives "
            "unquantized bytes, or a NaN left in the KV cache by an earlier forward",
            todo="see C1 and C2 for the layer; discard one request after a NaN",
        ),
        _whole(learner_layers),
        measured=bad.size,
        bound=0,
    )


@check("gross-divergence", "C6")
def gross_divergence(samples: Samples, learner_layers: Sequence[LearnerLayer]) -> Judgement:
    """The divergence from the learner is not gross: KL of at most 1 nat a token.

    Estimated on the engine's own samples by k3, exp(-d) - 1 + d with d the engine's minus the
    learner's log-probability (Schulman: Approximating KL Divergence, 2020), which is never
    negative. A gross alarm only: moderate faults stay far below, and what it finds the paired
    comparison finds too. It stays for engines that are not calibrated, and as what others report.
    """
    if not samples.engine.size:
        return _nothing_sampled()
    if not np.isfinite(samples.learner).all():
        return _no_reference("the learner's forward")
    gap = samples.engine - samples.learner
    with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are answers
        kl = float(np.mean(np.expm1(-gap) + gap))
    if kl <= _GROSS_KL:
        return passed(
            f"KL is {kl:.2g} nats a token on {counted(gap.size, 'token', 'tokens')}",
            _whole(learner_layers),
            measured=kl,
            bound=_GROSS_KL,
        )
    return failed(
        explain(
            "the sampler serves another policy than the learner's",
            where=_extent(samples),
            expected=f"a KL of at most {_GROSS_KL:g} nat a token",
            got=f"{kl:.3g} nats a token",
            cause="whole layers hold other weights or scales than the learner's",
            todo="see the failures of C1 to C5, which name the layers",
        ),
        _whole(learner_layers),
        measured=kl,
        bound=_GROSS_KL,
    )


@check("paired-logprobs", "C6")
def paired_logprobs(samples: Samples, learner_layers: Sequence[LearnerLayer]) -> Judgement:
    """Compare log-probabilities of the same tokens with a reference of the healthy pipeline.

    Where the engine rounds activations as the learner does, the reference is the learner's
    forward. Two healthy implementations differ there because a last bit of bf16 can move an
    activation to the next grid point, which costs about as much as activation rounding itself:
    the bound is twice the effect of that rounding (measured on the same tokens). Where it does
    not, the reference is the learner's model on the dequantized grid in float32, and the bound
    three times the effect of bf16 arithmetic. Neither is less than what float32 sums resolve.
    """
    if not samples.engine.size:
        return _nothing_sampled()
    if samples.rounds_activations:
        reference, other, factor = samples.learner, samples.dequantized, _SAME_PIPELINE
        name = "the learner's forward"
    else:
        reference, other, factor = samples.float32, samples.dequantized, _NOISE
        name = "the learner's dequantized weights in float32"
    if not (np.isfinite(reference).all() and np.isfinite(other).all()):
        return _no_reference(name)
    bound = max(_RESOLUTION, factor * float(np.mean(np.abs(reference - other))))
    measured = float(np.mean(np.abs(samples.engine - reference)))
    if measured <= bound:
        return passed(
            f"mean difference to {name} is {measured:.2g} on "
            f"{counted(reference.size, 'token', 'tokens')}",
            _whole(learner_layers),
            measured=measured,
            bound=bound,
        )
    return failed(
        explain(
            "log-probabilities differ by more than a healthy pipeline explains",
            where=_extent(samples),
            expected=f"a mean difference to {name} of at most {bound:.3g}",
            got=f"{measured:.3g}",
            cause="the sampler computes with other weights, scales or rounding than the learner",
            todo="see the failures of C1 to C5; if there are none, compare attention, "
            "normalization and sampling settings of the two sides",
        ),
        _whole(learner_layers),
        measured=measured,
        bound=bound,
    )


def _whole(learner_layers: Sequence[LearnerLayer]) -> Coverage:
    return Coverage(len(learner_layers), len(learner_layers))


def _nothing_sampled() -> Judgement:
    return not_run(Reason.MISSING_INPUT, "the engine sampled nothing")


def _no_reference(name: str) -> Judgement:
    return not_run(
        Reason.MISSING_INPUT,
        explain(
            "there is nothing to compare the sampler with",
            expected=f"finite log-probabilities of {name}",
            got="NaN or infinity",
            cause="the learner itself has diverged, or holds weights that its grid cannot hold",
            todo="look at the learner's own loss and weights first",
        ),
    )


def _extent(samples: Samples) -> str:
    return (
        f"{counted(samples.engine.size, 'token', 'tokens')} of "
        f"{counted(len(samples.sequences), 'sequence', 'sequences')} that the engine sampled"
    )


def _position(samples: Samples, index: int) -> str:
    """Where a score is: that of each token after a sequence's first."""
    ends = list(accumulate(len(sequence) - 1 for sequence in samples.sequences))
    number = next((n for n, end in enumerate(ends) if index < end), len(ends))
    start = ends[number - 1] if number else 0
    return f"sequence {number}, token {index - start + 1}"
