"""Published instruments, kept for comparison: a campaign shows what they see and what they miss."""

from collections.abc import Sequence
from typing import Final

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import ProbeReference
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["published_random_probe"]

_TOLERANCE: Final = 0.25


@check("published-random-probe", "C3", reference=True)
def published_random_probe(random_probe: Sequence[ProbeReference]) -> Judgement:
    """Run every linear kernel on Gaussian rows; one tolerance of 0.25 on the relative error.

    The tolerance is that of https://github.com/verl-project/verl/pull/7519: the relative Frobenius
    error against the learner's dequantized weights, where rounded activations alone make about
    0.027. It sees a stale layout. It is blind to stale values: after an optimizer step of 1e-6 a
    wholly stale copy moves the error by far less than 0.25.
    """
    if not random_probe:
        return not_run(Reason.MISSING_INPUT, "there is no layer to probe")
    nbytes = sum(probe.nbytes for probe in random_probe)
    weights = sum(len(probe.parts) for probe in random_probe)
    coverage = Coverage(weights, weights, nbytes, nbytes)
    bad = [probe for probe in random_probe if not probe.error <= _TOLERANCE]
    worst = max(random_probe, key=lambda probe: (probe.error != probe.error, probe.error))
    if not bad:
        return passed(
            f"the relative errors of {len(random_probe)} layers are within {_TOLERANCE}",
            coverage,
            measured=worst.error,
            bound=_TOLERANCE,
        )
    return failed(
        explain(
            f"{counted(len(bad), 'kernel is', 'kernels are')} off by more than a quarter",
            where=listed([part for probe in bad for part in probe.parts]),
            expected=f"a relative Frobenius error of at most {_TOLERANCE}",
            got=f"{worst.module}: {worst.error:.4f}",
            cause="the kernel reads weights or scales through another layout than they were "
            "written in",
            todo="see what the exact probe says of these layers",
        ),
        coverage,
        subject=bad[0].parts[0],
        measured=worst.error,
        bound=_TOLERANCE,
        evidence=[(probe.module, f"{probe.error:.4f}") for probe in bad],
    )
