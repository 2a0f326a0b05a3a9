"""C3: every kernel-specific copy of weights or scales is rebuilt from the synchronized weights."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.matching import MATRICES, NO_RANKS, Ranks, answers, on_ranks
from syncguard.checks.registry import check
from syncguard.observations import (
    LearnerLayer,
    ProbeReference,
    Rederivation,
    Unreadable,
    WeightPrint,
)
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["equal_sync", "exact_probe_check", "random_probe_check", "rederivation"]


@check("exact-probe", "C3")
def exact_probe_check(
    learner_layers: Sequence[LearnerLayer],
    learner_prints: Mapping[str, WeightPrint],
    learner_values: Mapping[str, NDArray[np.uint64]],
    value_history: Mapping[str, Mapping[str, NDArray[np.uint64]]],
    exact_probe: Mapping[str, WeightPrint | Unreadable],
    probe_ranks: Ranks = NO_RANKS,
    flushed_values: Mapping[str, NDArray[np.uint64]] = MappingProxyType({}),
) -> Judgement:
    """Run every serving kernel on rows of the identity matrix and compare bit for bit.

    A one-hot row quantizes exactly and has one non-zero product, so the output is a column of the
    weight that the kernel computes with, through whatever layout it reads. No tolerance, no
    knowledge of the layout. Every copy of a weight counts, on each rank and replica. A kernel may
    flush subnormal numbers to zero, as products in bf16 do on several devices.
    """
    served = [layer.weight for layer in learner_layers if layer.kind in MATRICES]
    wanted = {weight: learner_values[weight] for weight in served if weight in learner_values}
    if not wanted or not exact_probe:
        return not_run(Reason.MISSING_INPUT, "there is no layer to probe")
    given = answers(learner_layers, exact_probe)
    wrong: dict[str, str] = {}
    unseen: dict[str, str] = {}
    checked = nbytes = total = 0
    for weight in served:
        size = learner_prints[weight].nbytes if weight in learner_prints else 0
        total += size
        blind: dict[str, str] = {}
        if weight not in wanted or not given[weight]:
            blind[weight] = (
                "no serving path was found" if weight in wanted else "the learner gave no values"
            )
        for key, got in given[weight].items() if weight in wanted else ():
            if not isinstance(got, WeightPrint):
                blind[key] = got.why
            elif text := _deviation(
                got.rows["values"], wanted[weight], flushed_values.get(weight, wanted[weight])
            ):
                origin = _origin(got, weight, wanted, value_history)
                wrong[key] = text + on_ranks(probe_ranks, key) + origin
        unseen |= blind
        checked += not blind
        nbytes += 0 if blind else size
    coverage = Coverage(checked, len(served), nbytes, total)
    if wrong:
        key, rows_text = next(iter(wrong.items()))
        return failed(
            explain(
                f"{counted(len(wrong), 'kernel computes', 'kernels compute')} with other weights "
                "than the learner",
                where=listed(list(wrong)),
                expected="the learner's dequantized weight, bit for bit",
                got=f"{key}: {rows_text}",
                cause="a copy that the kernel reads (swizzled scales, packed or shuffled weights, "
                "a cached cast) was not rebuilt from the synchronized weights",
                todo="if C2 passes for this layer, run its post-processing after the sync, or "
                "rebuild the copy in place; for a tied lm_head rebuild the head's own copy too",
            ),
            coverage,
            subject=key,
            measured=len(wrong),
            bound=0,
            evidence=wrong.items(),
        )
    if unseen:
        return not_run(
            Reason.UNSUPPORTED,
            explain(
                f"{counted(len(unseen), 'layer', 'layers')} could not be probed",
                where=listed(sorted(unseen)),
                got=next(iter(unseen.values())),
                todo="let the adapter run this layer's serving path on rows of the identity",
            ),
            coverage,
            evidence=sorted(unseen.items()),
        )
    return passed(
        f"{counted(checked, 'layer serves', 'layers serve')} the learner's weights, bit for bit",
        coverage,
        measured=0,
        bound=0,
    )


def _deviation(
    rows: NDArray[np.uint64], expected: NDArray[np.uint64], flushed: NDArray[np.uint64]
) -> str:
    if rows.shape != expected.shape:
        return f"{rows.size} output rows instead of {expected.size}"
    differing = np.flatnonzero((rows != expected) & (rows != flushed))
    if not differing.size:
        return ""
    return f"{differing.size} of {rows.size} output rows differ, the first is {int(differing[0])}"


def _origin(
    got: WeightPrint,
    weight: str,
    values: Mapping[str, NDArray[np.uint64]],
    history: Mapping[str, Mapping[str, NDArray[np.uint64]]],
) -> str:
    """Where the learner has, or had, the first wrong row that a kernel computes with."""
    rows, expected = got.rows["values"], values[weight]
    if rows.shape != expected.shape:
        return ""
    row = rows[np.flatnonzero(rows != expected)[0]]
    for version, prints in {"": values, **history}.items():
        for name in sorted(prints, key=lambda name: name != weight):
            found = np.flatnonzero(prints[name] == row)
            if found.size:
                of_version = f" of {version}" if version else ""
                return f", which holds row {int(found[0])} of the learner's {name}{of_version}"
    return ""


@check("random-probe", "C3")
def random_probe_check(
    learner_layers: Sequence[LearnerLayer],
    learner_prints: Mapping[str, WeightPrint],
    random_probe: Sequence[ProbeReference],
) -> Judgement:
    """Run every linear kernel on Gaussian rows and compare with an emulation of a healthy one.

    The emulation rounds activations as the kernel does and multiplies with the learner's
    dequantized weights in float32. What remains is the rounding of the output (2^-7 of it, one
    unit in bf16's last place) and the order of accumulation (2 K 2^-24 of the sum of magnitudes),
    so the bound is calibrated for each layer and element. Published checks use one relative
    Frobenius error of 0.25 instead, which stale weights of a small step stay far below.
    """
    if not random_probe:
        return not_run(Reason.MISSING_INPUT, "there is no layer to probe")
    probed = {part for probe in random_probe for part in probe.parts}
    linear = {x.weight for x in learner_layers if x.kind in MATRICES and x.kind != "embedding"}
    unprobed = sum(learner_prints[weight].nbytes for weight in linear - probed)
    nbytes = sum(probe.nbytes for probe in random_probe)
    coverage = Coverage(len(probed), len(linear | probed), nbytes, nbytes + unprobed)
    bad = sorted((p for p in random_probe if not p.worst <= 1), key=_by_worst, reverse=True)
    worst = max(random_probe, key=_by_worst)
    largest = max((probe.error for probe in random_probe), key=_nan_is_worst)
    evidence = [("relative Frobenius error, largest", f"{largest:.4f}")]
    if not bad:
        return passed(
            f"{counted(len(random_probe), 'layer gives', 'layers give')} what the emulation gives, "
            "within rounding",
            coverage,
            measured=worst.worst,
            bound=1.0,
            evidence=evidence,
        )
    return failed(
        explain(
            f"{counted(len(bad), 'kernel is', 'kernels are')} off by more than rounding",
            where=listed([part for probe in bad for part in probe.parts]),
            expected="every output within its rounding bound of the emulated kernel",
            got=f"{worst.module}: {worst.worst:.3g} times the bound, relative Frobenius error "
            f"{worst.error:.4f} (healthy {worst.healthy:.4f})",
            cause="the kernel reads stale or misplaced weights or scales, or rounds activations "
            "by another rule",
            todo="see which rows the exact probe names; if it passes, compare the activation "
            "quantizers",
        ),
        coverage,
        subject=next(iter(worst.parts), worst.module),
        measured=worst.worst,
        bound=1.0,
        evidence=[*evidence, *((probe.module, f"{probe.worst:.3g}") for probe in bad)],
    )


def _by_worst(probe: ProbeReference) -> float:
    return _nan_is_worst(probe.worst)


def _nan_is_worst(value: float) -> float:
    return math.inf if math.isnan(value) else value


@check("re-derivation", "C3")
def rederivation(rederived: Sequence[Rederivation]) -> Judgement:
    """Derive every readable derived tensor again from its canonical tensors; compare bytes."""
    if not rederived:
        return not_run(
            Reason.NOT_APPLICABLE, "the engine keeps no derived tensors that can be read"
        )
    nbytes = sum(result.nbytes for result in rederived)
    weights = {part for result in rederived for part in result.parts}
    coverage = Coverage(len(weights), len(weights), nbytes, nbytes)
    wrong = [result for result in rederived if result.differing]
    if not wrong:
        return passed(
            f"{counted(len(rederived), 'derived tensor equals', 'derived tensors equal')} what "
            "canonical tensors give",
            coverage,
            measured=0,
            bound=0,
        )
    differing = sum(result.differing for result in wrong)
    return failed(
        explain(
            f"{counted(len(wrong), 'derived tensor is', 'derived tensors are')} not what "
            "canonical tensors give",
            where=listed([result.path for result in wrong]),
            expected="the bytes of a fresh derivation",
            got=f"{wrong[0].path}: {wrong[0].differing} of {wrong[0].nbytes} bytes differ",
            cause="the sync wrote the canonical tensors and did not run the post-processing, or "
            "its result went to other storage",
            todo="run the layer's post-processing in place after every sync",
        ),
        coverage,
        subject=next(iter(wrong[0].parts), wrong[0].path),
        measured=differing,
        bound=0,
        evidence=[(x.path, counted(x.differing, "byte", "bytes")) for x in wrong],
    )


@check("equal-sync", "C3")
def equal_sync(
    same_weights: bool, state_before: Mapping[str, int], state: Mapping[str, int]
) -> Judgement:
    """Sync the same weights again: no byte of any reachable tensor may change."""
    if not same_weights:
        return not_run(Reason.NOT_APPLICABLE, "this sync sent other weights than the one before")
    if not state_before or not state:
        return not_run(Reason.MISSING_INPUT, "the engine reported no tensors")
    coverage = Coverage(
        len(state_before.keys() & state.keys()), len(state_before.keys() | state.keys())
    )
    changed = sorted(
        path
        for path in state_before.keys() | state.keys()
        if state_before.get(path) != state.get(path)
    )
    if not changed:
        return passed(
            f"{counted(len(state), 'tensor is', 'tensors are')} unchanged by a sync of equal "
            "weights",
            coverage,
            measured=0,
            bound=0,
        )
    return failed(
        explain(
            f"a sync of equal weights changed {counted(len(changed), 'tensor', 'tensors')}",
            where=listed(changed),
            expected="no byte changes",
            got=f"{len(changed)} of {len(state_before.keys() | state.keys())} tensors changed",
            cause="a transform that is not idempotent is applied to its own result, or memory "
            "that no one wrote was loaded",
            todo="make post-processing start from canonical tensors each time",
        ),
        coverage,
        subject=changed[0],
        measured=len(changed),
        bound=0,
        evidence=[(path, "changed") for path in changed],
    )
