"""C3, cheap: one exact answer for every block of some layers, in turn, for use at every sync."""

from collections.abc import Mapping, Sequence

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import BlockProbe, Rotation, WeightPrint
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["block_probe_check"]


@check("block-probe", "C3")
def block_probe_check(
    learner_prints: Mapping[str, WeightPrint],
    block_probe: Sequence[BlockProbe],
    rotation: Rotation | None,
) -> Judgement:
    """Run the kernels of some layers on one row for each block of 32, and compare to the bit.

    That is a thirty-second of the rows that the exact probe needs. An MXFP8 layer gets rows that
    are +-1 in one block and 0 elsewhere: they quantize exactly, and the sum of one block under one
    scale is exact in float32. A changed element or scale changes its block's sum; only what the
    last rounding swallows can hide. Of any other layer, whose sums are not exact, it is rows of
    the identity, one element of each block at a turn, so that after 32 turns nothing can hide.
    Layers take turns within a budget; the answer says what was covered now and lately. Where every
    sync can afford the exact probe, this check adds nothing: it is the form of it for production.
    """
    if rotation is None:
        return not_run(Reason.NOT_APPLICABLE, "every layer is probed exactly in this profile")
    if not block_probe:
        return not_run(Reason.MISSING_INPUT, "there is no layer to probe")
    probed = {part for probe in block_probe for part in probe.parts}
    known = probed | set(rotation.names)
    coverage = Coverage(
        len(probed),
        len(known),
        sum(learner_prints[weight].nbytes for weight in probed),
        sum(learner_prints[weight].nbytes for weight in known),
    )
    lately = f"{rotation.covered} of {rotation.modules} layers in the last {rotation.syncs} syncs"
    wrong = [probe for probe in block_probe if probe.wrong]
    evidence = [("covered lately", lately)]
    if not wrong:
        return passed(
            f"{counted(len(block_probe), 'layer serves', 'layers serve')} the learner's "
            f"blocks to the bit; {lately}",
            coverage,
            measured=0,
            bound=0,
            evidence=evidence,
        )
    first = wrong[0]
    return failed(
        explain(
            f"{counted(len(wrong), 'kernel computes', 'kernels compute')} with other blocks than "
            "the learner's",
            where=listed([part for probe in wrong for part in probe.parts]),
            expected="a signed sum, or in other grids one element, of each block, to the last bit",
            got=f"{first.module}: {first.wrong} of {first.outputs} answers differ, the first in "
            f"{first.where}",
            cause="a copy that the kernel reads was not rebuilt from the synchronized weights",
            todo="run the exact probe on these layers; run their post-processing after the sync",
        ),
        coverage,
        subject=next(iter(first.parts), first.module),
        measured=sum(probe.wrong for probe in wrong),
        bound=0,
        evidence=[*evidence, *((probe.module, f"{probe.wrong} answers") for probe in wrong)],
    )
