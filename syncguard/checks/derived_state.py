"""C3: every kernel-specific copy of weights or scales is rebuilt from the synchronized weights."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from syncguard.checks.judgement import Judgement, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import (
    ProbeReference,
    Rederivation,
    Unreadable,
    WeightPrint,
)
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["equal_sync", "exact_probe_check", "random_probe_check", "rederivation"]


@check("exact-probe", "C3")
def exact_probe_check(
    learner_prints: Mapping[str, WeightPrint],
    learner_values: Mapping[str, NDArray[np.uint64]],
    value_history: Mapping[str, Mapping[str, NDArray[np.uint64]]],
    exact_probe: Mapping[str, WeightPrint | Unreadable],
) -> Judgement:
    """Run every serving kernel on rows of the identity matrix and compare bit for bit.

    A one-hot row quantizes exactly and has one non-zero product, so the output is a column of the
    weight that the kernel computes with, through whatever layout it reads. No tolerance, no
    knowledge of the layout.
    """
    if not learner_values or not exact_probe:
        return not_run(Reason.MISSING_INPUT, "there is no layer to probe")
    wrong: dict[str, str] = {}
    unseen: dict[str, str] = {}
    checked = nbytes = total = 0
    for weight, expected in learner_values.items():
        got = exact_probe.get(weight)
        rows, size = expected.size, learner_prints[weight].nbytes
        total += size
        if not isinstance(got, WeightPrint):
            unseen[weight] = got.why if got is not None else "no serving path was found"
            continue
        checked += 1
        nbytes += size
        if got.rows["values"].shape != expected.shape:
            wrong[weight] = f"{got.rows['values'].size} rows instead of {rows}"
            continue
        differing = np.flatnonzero(got.rows["values"] != expected)
        if differing.size:
            row = got.rows["values"][differing[0]]
            origin = _origin(row, weight, learner_values, value_history)
            wrong[weight] = (
                f"{differing.size} of {rows} output rows differ, the first is "
                f"{int(differing[0])}{origin}"
            )
    coverage = Coverage(checked, len(learner_values), nbytes, total)
    if wrong:
        weight, rows_text = next(iter(wrong.items()))
        return failed(
            explain(
                f"the kernels of {len(wrong)} layers compute with other weights than the learner",
                where=listed(list(wrong)),
                expected=f"{weight}: the learner's dequantized weight, bit for bit",
                got=f"{weight}: {rows_text}",
                cause="a copy that the kernel reads (swizzled scales, packed or shuffled weights, "
                "a cached cast) was not rebuilt from the synchronized weights",
                todo="if C2 passes for this layer, run its post-processing after the sync, or "
                "rebuild the copy in place; for a tied lm_head rebuild the head's own copy too",
            ),
            coverage,
            subject=weight,
            measured=len(wrong),
            bound=0,
            evidence=wrong.items(),
        )
    if unseen:
        return not_run(
            Reason.UNSUPPORTED,
            explain(
                f"{len(unseen)} layers could not be probed",
                where=listed(sorted(unseen)),
                got=next(iter(unseen.values())),
            ),
            coverage,
        )
    return passed(
        f"{checked} layers serve the learner's weights, bit for bit", coverage, measured=0, bound=0
    )


def _origin(
    row: np.uint64,
    weight: str,
    values: Mapping[str, NDArray[np.uint64]],
    history: Mapping[str, Mapping[str, NDArray[np.uint64]]],
) -> str:
    """Where the learner has, or had, the row that a kernel computes with."""
    for version, prints in {"": values, **history}.items():
        for name in sorted(prints, key=lambda name: name != weight):
            found = np.flatnonzero(prints[name] == row)
            if found.size:
                of_version = f" of {version}" if version else ""
                return f", which holds row {int(found[0])} of the learner's {name}{of_version}"
    return ""


@check("random-probe", "C3")
def random_probe_check(random_probe: Sequence[ProbeReference]) -> Judgement:
    """Run every linear kernel on Gaussian rows and compare with an emulation of a healthy one.

    The emulation rounds activations as the kernel does and multiplies with the learner's
    dequantized weights in float32. What remains is the rounding of the output (2^-8 of it, twice
    bf16's unit) and the order of accumulation (2 K 2^-24 of the sum of magnitudes), so the bound
    is calibrated for each layer and element. Published checks use one relative Frobenius
    error of 0.25 instead, which stale weights of a small step stay far below.
    """
    if not random_probe:
        return not_run(Reason.MISSING_INPUT, "there is no layer to probe")
    nbytes = sum(probe.nbytes for probe in random_probe)
    weights = sum(len(probe.parts) for probe in random_probe)
    coverage = Coverage(weights, weights, nbytes, nbytes)
    bad = [probe for probe in random_probe if not probe.worst <= 1]
    worst = max(random_probe, key=lambda probe: np.nan_to_num(probe.worst, nan=np.inf))
    evidence = [("relative Frobenius error, largest", f"{max(p.error for p in random_probe):.4f}")]
    if not bad:
        return passed(
            f"the outputs of {len(random_probe)} layers are within rounding of the emulation",
            coverage,
            measured=worst.worst,
            bound=1.0,
            evidence=evidence,
        )
    return failed(
        explain(
            f"the kernels of {len(bad)} layers are off by more than rounding",
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
        subject=bad[0].parts[0],
        measured=worst.worst,
        bound=1.0,
        evidence=[*evidence, *((probe.module, f"{probe.worst:.3g}") for probe in bad)],
    )


@check("re-derivation", "C3")
def rederivation(rederived: Sequence[Rederivation]) -> Judgement:
    """Derive every readable derived tensor again from its canonical tensors; compare bytes."""
    if not rederived:
        return not_run(
            Reason.NOT_APPLICABLE, "the engine keeps no derived tensors that can be read"
        )
    nbytes = sum(result.nbytes for result in rederived)
    weights = sum(len(result.parts) for result in rederived)
    coverage = Coverage(weights, weights, nbytes, nbytes)
    wrong = [result for result in rederived if result.differing]
    if not wrong:
        return passed(
            f"{len(rederived)} derived tensors equal what their canonical tensors give",
            coverage,
            measured=0,
            bound=0,
        )
    differing = sum(result.differing for result in wrong)
    return failed(
        explain(
            f"{len(wrong)} derived tensors are not what their canonical tensors give",
            where=listed([result.path for result in wrong]),
            expected="the bytes of a fresh derivation",
            got=f"{wrong[0].path}: {wrong[0].differing} of {wrong[0].nbytes} bytes differ",
            cause="the sync wrote the canonical tensors and did not run the post-processing, or "
            "its result went to other storage",
            todo="run the layer's post-processing in place after every sync",
        ),
        coverage,
        subject=wrong[0].parts[0],
        measured=differing,
        bound=0,
        evidence=[(result.path, f"{result.differing} bytes") for result in wrong],
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
            f"{len(state)} tensors are unchanged by a sync of equal weights",
            coverage,
            measured=0,
            bound=0,
        )
    return failed(
        explain(
            f"a sync of equal weights changed {len(changed)} tensors",
            where=listed(changed),
            expected="no byte changes",
            got=f"{len(changed)} of {len(state)} tensors changed",
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
