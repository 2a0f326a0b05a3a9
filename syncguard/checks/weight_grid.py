"""C2: the sampler's weights are the learner's forward weight grid."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from syncguard.checks.differences import Difference, describe, differing_rows
from syncguard.checks.judgement import Judgement, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import LearnerLayer, Unreadable, WeightPrint
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["weight_bytes", "weight_values"]


@check("weight-bytes", "C2")
def weight_bytes(
    learner_layers: Sequence[LearnerLayer],
    learner_prints: Mapping[str, WeightPrint],
    learner_values: Mapping[str, NDArray[np.uint64]],
    weight_prints: Mapping[str, WeightPrint | Unreadable],
    exact_probe: Mapping[str, WeightPrint | Unreadable],
    differences: Sequence[Difference],
) -> Judgement:
    """Compare every byte of every weight with what the learner's forward used.

    All weights count, not only quantized ones: norms, biases, embeddings, buffers. Where the
    engine keeps only a packed copy, the exact probe's answer takes the place of the bytes. Scales
    of blocks that hold only zeros may differ: the values are the same in every scale, and one
    kernel refuses the scale that the rule gives.
    """
    if not learner_prints or not weight_prints:
        return not_run(Reason.MISSING_INPUT, "one of the sides reported no weights")
    total = sum(print_.nbytes for print_ in learner_prints.values())
    by_weight = {difference.weight: difference for difference in differences}
    wrong: dict[str, str] = {}
    checked = covered = 0
    unseen: dict[str, str] = {}
    for layer in learner_layers:
        mine = learner_prints[layer.weight]
        theirs = weight_prints.get(layer.weight)
        if isinstance(theirs, WeightPrint) and differing_rows(mine, theirs) is not None:
            difference = by_weight.get(layer.weight)
            if difference is not None and not difference.only_zero_blocks:
                wrong[layer.weight] = f"{_rows(difference)}: {describe(difference)}"
        elif isinstance(theirs, WeightPrint):
            wrong[layer.weight] = (
                f"the learner holds {mine.grid} {list(mine.shape)}, "
                f"the engine {theirs.grid} {list(theirs.shape)}"
            )
        else:
            probed = exact_probe.get(layer.weight)
            if not isinstance(probed, WeightPrint) or layer.weight not in learner_values:
                unseen[layer.weight] = theirs.why if theirs is not None else "the engine has none"
                continue
            rows = np.flatnonzero(probed.rows["values"] != learner_values[layer.weight])
            if rows.size:
                wrong[layer.weight] = f"{rows.size} of {mine.shape[0]} rows, seen by the probe"
        checked += 1
        covered += mine.nbytes
    coverage = Coverage(checked, len(learner_layers), covered, total)
    if wrong:
        return failed(
            _message(wrong),
            coverage,
            subject=next(iter(wrong)),
            measured=len(wrong),
            bound=0,
            evidence=wrong.items(),
        )
    if unseen:
        return not_run(
            Reason.UNSUPPORTED,
            explain(
                f"{len(unseen)} weights can be neither read nor probed",
                where=listed(sorted(unseen)),
                got=next(iter(unseen.values())),
            ),
            coverage,
        )
    probed_count = sum(isinstance(print_, Unreadable) for print_ in weight_prints.values())
    note = f", {probed_count} of them through the exact probe" if probed_count else ""
    return passed(f"{checked} weights are the learner's{note}", coverage, measured=0, bound=0)


@check("weight-values", "C2")
def weight_values(
    learner_prints: Mapping[str, WeightPrint], differences: Sequence[Difference]
) -> Judgement:
    """Compare dequantized values where bytes differ.

    Bytes that differ in a value-neutral way (another scale for the same values) are a difference
    of convention; this check tells whether the policy is touched.
    """
    if not learner_prints:
        return not_run(Reason.MISSING_INPUT, "the learner reported no weights")
    total = sum(print_.nbytes for print_ in learner_prints.values())
    coverage = Coverage(len(learner_prints), len(learner_prints), total, total)
    wrong = {d.weight: f"{_rows(d)}: {describe(d)}" for d in differences if d.values_differ}
    if not wrong:
        same = len(differences)
        note = f"; {same} differ in encoding only" if same else ""
        return passed(f"all weights hold the learner's values{note}", coverage, measured=0, bound=0)
    return failed(
        _message(wrong),
        coverage,
        subject=next(iter(wrong)),
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )


def _rows(difference: Difference) -> str:
    first = int(difference.rows[0])
    return f"{difference.rows.size} of {difference.total} rows, the first is {first}"


def _message(wrong: Mapping[str, str]) -> str:
    weight, kind = next(iter(wrong.items()))
    return explain(
        f"{len(wrong)} weights differ from what the learner's forward used",
        where=listed(list(wrong)),
        expected=f"{weight}: the bytes of the learner's forward grid",
        got=f"{weight}: {kind}",
        cause="the weight was not written, was written from another source or version, or was "
        "quantized by another rule than the learner's",
        todo="compare the quantizers on the canary tensor; check what the exporter read and when",
    )
