"""C3: an engine that was synchronized equals one that loaded the same weights at start."""

from collections.abc import Mapping

import numpy as np

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import ColdEngine, Unreadable, WeightPrint
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["cold_warm"]


@check("cold-warm", "C3")
def cold_warm(
    cold_engine: ColdEngine | None,
    warm_state: Mapping[str, int],
    exact_probe: Mapping[str, WeightPrint | Unreadable],
) -> Judgement:
    """Start a second engine on the learner's weights; every reachable tensor must be equal.

    It needs no knowledge of layouts and no reference but the engine itself. What cannot be read
    (packed copies in closures) is compared by the exact probe. Costs a start of an engine, so it
    runs only where it is asked for.
    """
    if cold_engine is None:
        return not_run(Reason.NOT_APPLICABLE, "no engine was started cold to compare with")
    if not cold_engine.state or not warm_state:
        return not_run(Reason.MISSING_INPUT, "an engine reported no tensors")
    paths = cold_engine.state.keys() | warm_state.keys()
    wrong = {
        path: _fate(path, cold_engine.state, warm_state)
        for path in sorted(paths)
        if cold_engine.state.get(path) != warm_state.get(path)
    }
    probed = {key: cold for key, cold in cold_engine.probe.items() if isinstance(cold, WeightPrint)}
    for key, cold in probed.items():
        if text := _served(cold, exact_probe.get(key)):
            wrong[key] = text
    coverage = Coverage(len(paths & warm_state.keys()), len(paths))
    if not wrong:
        return passed(
            f"{counted(len(paths), 'tensor', 'tensors')} and "
            f"{counted(len(probed), 'serving path', 'serving paths')} are those of an engine that "
            "loaded the same weights",
            coverage,
            measured=0,
            bound=0,
        )
    subject, text = next(iter(wrong.items()))
    return failed(
        explain(
            f"{counted(len(wrong), 'part differs', 'parts differ')} from an engine that loaded the "
            "same weights",
            where=listed(list(wrong)),
            expected="after a sync, the bytes of an engine that was started on these weights",
            got=f"{subject}: {text}",
            cause="something that is set up when weights are loaded is not set up again by a sync",
            todo="compare what the load path does for this tensor with what the sync path does",
        ),
        coverage,
        subject=subject,
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )


def _served(cold: WeightPrint, warm: WeightPrint | Unreadable | None) -> str:
    """How the serving paths of one weight differ; empty if they do not."""
    if not isinstance(warm, WeightPrint):
        return "its kernel could be asked in the engine that was started on the weights only"
    expected, rows = cold.rows["values"], warm.rows["values"]
    if rows.shape != expected.shape:
        return f"its kernel serves {rows.size} rows instead of {expected.size}"
    differing = int(np.count_nonzero(rows != expected))
    return f"its kernel serves {counted(differing, 'other row', 'other rows')}" if differing else ""


def _fate(path: str, cold: Mapping[str, int], warm: Mapping[str, int]) -> str:
    if path not in warm:
        return "exists only in the engine that was started on the weights"
    return "holds other bytes" if path in cold else "exists only in the synchronized engine"
