"""C6: the sampler's probabilities are finite and its divergence from the learner is bounded."""

import numpy as np

from syncguard.checks.judgement import Judgement, failed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import Samples
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["finite", "gross_divergence", "paired_logprobs"]

_GROSS_KL = 1.0
_SAME_PIPELINE = 2.0
_NOISE = 3.0


@check("finite", "C6")
def finite(samples: Samples) -> Judgement:
    """All log-probabilities that the engine gave are finite."""
    values = samples.engine
    if not values.size:
        return not_run(Reason.MISSING_INPUT, "the engine sampled nothing")
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if not bad:
        return passed(
            f"{values.size} log-probabilities are finite", Coverage(1, 1), measured=0, bound=0
        )
    return failed(
        explain(
            f"{bad} of {values.size} log-probabilities are not finite",
            expected="finite numbers",
            got="NaN or infinity",
            cause="uninitialised scales or weights, a quantized lm_head that receives "
            "unquantized bytes, or a NaN left in the KV cache by an earlier forward",
            todo="see C1 and C2 for the layer; discard one request after a NaN",
        ),
        Coverage(1, 1),
        measured=bad,
        bound=0,
    )


@check("gross-divergence", "C6")
def gross_divergence(samples: Samples) -> Judgement:
    """The divergence from the learner is not gross: KL of at most 1 nat a token.

    Estimated on the engine's own samples by k3, exp(-d) - 1 + d with d the engine's minus the
    learner's log-probability (Schulman: Approximating KL Divergence, 2020), which is never
    negative. A gross alarm only: moderate faults stay far below.
    """
    if not samples.engine.size:
        return not_run(Reason.MISSING_INPUT, "the engine sampled nothing")
    gap = samples.engine - samples.learner
    kl = float(np.mean(np.expm1(-gap) + gap))
    if kl <= _GROSS_KL:
        return passed(
            f"KL is {kl:.2g} nats a token on {gap.size} tokens",
            Coverage(1, 1),
            measured=kl,
            bound=_GROSS_KL,
        )
    return failed(
        explain(
            "the sampler serves another policy than the learner's",
            expected=f"a KL of at most {_GROSS_KL:g} nats a token",
            got=f"{kl:.3g} nats a token on {gap.size} tokens",
            cause="whole layers hold other weights or scales than the learner's",
            todo="see the failures of C1 to C5, which name the layers",
        ),
        Coverage(1, 1),
        measured=kl,
        bound=_GROSS_KL,
    )


@check("paired-logprobs", "C6")
def paired_logprobs(samples: Samples) -> Judgement:
    """Compare log-probabilities of the same tokens with a reference of the healthy pipeline.

    Where the engine rounds activations as the learner does, the reference is the learner's
    forward. Two healthy implementations differ there because a last bit of bf16 can move an
    activation to the next grid point, which costs about as much as activation rounding itself:
    the bound is twice the effect of that rounding (measured on the same tokens). Where it does
    not, the reference is the learner's model on the dequantized grid in float32, and the bound
    three times the effect of bf16 arithmetic.
    """
    if not samples.engine.size:
        return not_run(Reason.MISSING_INPUT, "the engine sampled nothing")
    if samples.rounds_activations:
        reference, other = samples.learner, samples.dequantized
        bound = _SAME_PIPELINE * float(np.mean(np.abs(reference - other)))
        name = "the learner's forward"
    else:
        reference, other = samples.float32, samples.dequantized
        bound = _NOISE * float(np.mean(np.abs(reference - other)))
        name = "the learner's dequantized weights in float32"
    measured = float(np.mean(np.abs(samples.engine - reference)))
    if measured <= bound:
        return passed(
            f"mean difference to {name} is {measured:.2g} on {reference.size} tokens",
            Coverage(1, 1),
            measured=measured,
            bound=bound,
        )
    return failed(
        explain(
            "log-probabilities differ by more than a healthy pipeline explains",
            expected=f"a mean difference to {name} of at most {bound:.3g}",
            got=f"{measured:.3g} on {reference.size} tokens",
            cause="the sampler computes with other weights, scales or rounding than the learner",
            todo="see the failures of C1 to C5; if there are none, compare attention, "
            "normalization and sampling settings of the two sides",
        ),
        Coverage(1, 1),
        measured=measured,
        bound=bound,
    )
