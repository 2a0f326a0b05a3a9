"""C2: the sampler's weights are the learner's forward weight grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from syncguard.checks.differences import Difference, describe, differing_rows, differing_scales
from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.matching import NO_RANKS, Ranks, answers, on_ranks
from syncguard.checks.registry import check
from syncguard.observations import LearnerLayer, Unreadable, WeightPrint
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["weight_bytes", "weight_values"]


@check("weight-bytes", "C2")
def weight_bytes(
    learner_layers: Sequence[LearnerLayer],
    learner_prints: Mapping[str, WeightPrint],
    packed_values: Mapping[str, NDArray[np.uint64]],
    weight_prints: Mapping[str, WeightPrint | Unreadable],
    packed_probe: Mapping[str, WeightPrint | Unreadable],
    differences: Sequence[Difference],
    byte_ranks: Ranks = NO_RANKS,
) -> Judgement:
    """Compare every byte of every weight with what the learner's forward used.

    All weights count, not only quantized ones: norms, biases, embeddings, buffers; and every copy
    of them, on each rank and replica. Where the engine keeps only a packed copy, or holds the
    weight in another grid, the exact probe's answer takes the place of the bytes; scales that it
    keeps beside packed elements are compared all the same. Two
    differences are none of values and pass: scales of blocks that hold only zeros (one kernel
    refuses the scale that the rule gives), and a format without scales that holds every value of
    another one, such as float32 for bf16.
    """
    if not learner_prints or not weight_prints:
        return not_run(Reason.MISSING_INPUT, "one of the sides reported no weights")
    told = {difference.weight: difference for difference in differences}
    wrong: dict[str, str] = {}
    unseen: dict[str, str] = {}
    checked = covered = probed = 0
    for weight, copies in answers(learner_layers, weight_prints).items():
        mine = learner_prints.get(weight)
        if mine is None or not copies:
            unseen[weight] = f"the {'learner' if mine is None else 'engine'} has none"
            continue
        values = packed_values.get(weight)
        found = {
            key: _judged(mine, copy, told.get(key), packed_probe.get(key), values)
            for key, copy in copies.items()
        }
        wrong |= {
            key: copy.wrong + on_ranks(byte_ranks, key) for key, copy in found.items() if copy.wrong
        }
        blind = {key: copy.unseen for key, copy in found.items() if copy.unseen}
        unseen |= blind
        probed += any(copy.probed for copy in found.values())
        checked += not blind
        covered += 0 if blind else mine.nbytes
    total = sum(print_.nbytes for print_ in learner_prints.values())
    coverage = Coverage(checked, len(learner_layers), covered, total)
    if wrong:
        return _failed(wrong, coverage)
    if unseen:
        return not_run(
            Reason.UNSUPPORTED,
            explain(
                f"{counted(len(unseen), 'weight', 'weights')} can be neither read nor probed",
                where=listed(sorted(unseen)),
                got=next(iter(unseen.values())),
                todo="let the adapter read the weight, or probe its serving path",
            ),
            coverage,
            evidence=sorted(unseen.items()),
        )
    note = f", {probed} of them through the exact probe" if probed else ""
    return passed(
        f"{counted(checked, 'weight is', 'weights are')} the learner's{note}",
        coverage,
        measured=0,
        bound=0,
    )


@check("weight-values", "C2")
def weight_values(
    learner_layers: Sequence[LearnerLayer],
    learner_prints: Mapping[str, WeightPrint],
    weight_prints: Mapping[str, WeightPrint | Unreadable],
    differences: Sequence[Difference],
) -> Judgement:
    """Compare dequantized values where bytes differ.

    Bytes that differ in a value-neutral way (another scale for the same values) are a difference
    of convention; this check tells whether the policy is touched. Weights that cannot be read, or
    are in another grid, are not covered: the exact probe speaks of those.
    """
    if not learner_prints:
        return not_run(Reason.MISSING_INPUT, "the learner reported no weights")
    found = answers(learner_layers, weight_prints)
    read = [
        mine
        for weight, mine in learner_prints.items()
        if found.get(weight) and all(_readable(mine, copy) for copy in found[weight].values())
    ]
    coverage = Coverage(
        len(read),
        len(learner_prints),
        sum(mine.nbytes for mine in read),
        sum(mine.nbytes for mine in learner_prints.values()),
    )
    wrong = {
        difference.weight: _text(difference.rows, difference.total, difference)
        for difference in differences
        if difference.values_differ
    }
    if wrong:
        return _failed(wrong, coverage)
    if not read:
        return not_run(
            Reason.UNSUPPORTED, "no weight of this engine can be read in the learner's grid"
        )
    note = f"; {len(differences)} differ in encoding only" if differences else ""
    return passed(
        f"{counted(len(read), 'weight holds', 'weights hold')} the learner's values{note}",
        coverage,
        measured=0,
        bound=0,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of one copy: why it is wrong, or why nothing is known; else it is right.

    Attributes:
        probed: Whether it is the exact probe that says so.
    """

    wrong: str = ""
    unseen: str = ""
    probed: bool = False


def _judged(
    mine: WeightPrint,
    theirs: WeightPrint | Unreadable,
    difference: Difference | None,
    probe: WeightPrint | Unreadable | None,
    values: NDArray[np.uint64] | None,
) -> _Found:
    total = next(iter(mine.rows.values())).size
    rows = differing_rows(mine, theirs) if isinstance(theirs, WeightPrint) else None
    if rows is not None:
        neutral = not rows.size or (difference is not None and difference.neutral)
        return _Found() if neutral else _Found(wrong=_text(rows, total, difference))
    served = _served(probe, values)
    if isinstance(theirs, WeightPrint) and (scales := differing_scales(mine, theirs)).size:
        return _Found(wrong=f"its scales: {_text(scales, total, None)}")
    if served is None:
        if isinstance(theirs, Unreadable):
            return _Found(unseen=theirs.why or "the engine does not say why")
        if theirs.rows.keys() == {"scales"} and mine.grid == theirs.grid:
            return _Found(unseen="its elements are packed, and were not probed")
        return _Found(wrong=_forms(mine, theirs))
    if not served.size:
        return _Found(probed=True)
    told = _text(served, total, None)
    if isinstance(theirs, Unreadable) or theirs.rows.keys() == {"scales"}:
        return _Found(wrong=f"{told}, seen by the exact probe")
    return _Found(wrong=f"{_forms(mine, theirs)}; through the exact probe {told}")


def _readable(mine: WeightPrint, theirs: WeightPrint | Unreadable) -> bool:
    return isinstance(theirs, WeightPrint) and differing_rows(mine, theirs) is not None


def _served(
    probe: WeightPrint | Unreadable | None, values: NDArray[np.uint64] | None
) -> NDArray[np.int64] | None:
    """Rows that the serving path computes with otherwise; none if it cannot tell."""
    if not isinstance(probe, WeightPrint) or values is None:
        return None
    rows = probe.rows["values"]
    return np.flatnonzero(rows != values) if rows.shape == values.shape else np.arange(values.size)


def _text(rows: NDArray[np.int64], total: int, difference: Difference | None) -> str:
    kind = f": {describe(difference)}" if difference is not None else ""
    return f"{rows.size} of {total} rows differ, the first is {int(rows[0])}{kind}"


def _forms(mine: WeightPrint, theirs: WeightPrint) -> str:
    return (
        f"the learner holds {mine.grid} {list(mine.shape)}, "
        f"the engine {theirs.grid} {list(theirs.shape)}"
    )


def _failed(wrong: Mapping[str, str], coverage: Coverage) -> Judgement:
    weight, kind = next(iter(wrong.items()))
    return failed(
        explain(
            f"{counted(len(wrong), 'weight differs', 'weights differ')} from what the learner's "
            "forward used",
            where=listed(list(wrong)),
            expected="the bytes of the learner's forward grid",
            got=f"{weight}: {kind}",
            cause="the weight was not written, was written from another source or version, or was "
            "quantized by another rule than the learner's",
            todo="compare the quantizers on the canary tensor; check what the exporter read and "
            "when",
        ),
        coverage,
        subject=weight,
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )
