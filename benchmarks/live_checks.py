"""What the checks cost after a live sync of SmolLM2-135M, and what memory they take.

A learner (torchao's MXFP8) and a live vLLM engine in one process sync several times. The time of
all observations and checks around a sync is divided by the time of that sync, for the production
profile (C1 to C5 at full coverage of the weights, kernels probed in turn) and the smoke profile
(everything). The learner has observed its grid in a forward before, as it has after a training
step. Memory is the peak of the process above what it held when the checks began.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _measure import Row, Spread, at_most, machine, not_run, noted, record, rounds, use_all_cores

_SMOLLM2 = Path(__file__).parents[1] / "build" / "smollm2"
_SHARE = "all checks C1 to C5 after a live sync, production profile, share of the sync"
_MEMORY = "peak extra memory of the checks, production profile"
_SHARE_BOUND = 0.25
_SPARE_MIB = 64
_ROUNDS = 9
_BUCKET = 32 << 20


class _Silent:
    """A listener that keeps failures only."""

    def __init__(self) -> None:
        self.failures: set[str] = set()

    def step(self, text: str, done: int, total: int) -> None:
        """Not kept."""

    def verdict(self, verdict: Any) -> None:
        if verdict.status == "fail":
            self.failures.add(verdict.check)

    def finished(self, report: Any) -> None:
        """Not kept."""


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _rows() -> list[Row]:
    from syncguard.engines.vllm import VllmEngine
    from syncguard.guard import Guard
    from syncguard.learners import TransformersLearner
    from syncguard.profiles import PRODUCTION, SMOKE

    engine = VllmEngine(_SMOLLM2, "mxfp8")
    learner = TransformersLearner(_SMOLLM2, quantization="mxfp8")
    learner.layers()
    use_all_cores()
    rows = []
    for profile, count in ((PRODUCTION, rounds(_ROUNDS)), (SMOKE, 3)):
        heard = _Silent()
        vocabulary = learner.checkpoint.config["vocab_size"]
        guard = Guard(learner, engine, heard, profile=profile, vocabulary=vocabulary)
        guard.sync(bucket_bytes=_BUCKET)  # compiles, and looks up what stays
        shares, costs = [], []
        for _ in range(count):
            gc.collect()
            summary, verdicts = guard.sync(bucket_bytes=_BUCKET)
            shares.append(summary.checks_s / summary.seconds)
            costs.append(summary.checks_s)
            unanswered = [v.check for v in verdicts if v.counts and v.status == "not_run"]
            if unanswered:
                raise RuntimeError(f"these checks did not run: {unanswered}")
        print(f"  {profile.name}: fails {', '.join(sorted(heard.failures)) or 'nothing'}")
        if profile is PRODUCTION:
            rows.append(at_most(_SHARE, Spread.of(shares), "ratio", _SHARE_BOUND))
            rows.append(noted("checks after a live sync, production", Spread.of(costs), "s"))
            peaks = [_peak(guard.judge) for _ in range(3)]
            largest = max(held.nbytes for held in learner.prints().values()) / 2**20
            rows.append(at_most(_MEMORY, Spread.of(peaks), "MiB", largest + _SPARE_MIB))
        else:
            rows.append(
                noted("all checks after a live sync, smoke profile", Spread.of(shares), "ratio")
            )
            rows.append(noted("checks after a live sync, smoke", Spread.of(costs), "s"))
    return rows


def _peak(checks: Callable[[], object]) -> float:
    """Peak of resident memory over what was held before, in MiB."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what earlier rounds freed must not hide a peak
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _resident("VmRSS")
    checks()
    return (_resident("VmHWM") - before) / 2**20


def _main() -> None:
    print(f"  {machine()}")
    missing = "" if (_SMOLLM2 / "config.json").is_file() else "run `make smollm2` first"
    try:
        import vllm  # noqa: F401
    except ImportError as error:
        missing = str(error)
    if missing:
        record(
            [
                not_run(_SHARE, "ratio", f"at most {_SHARE_BOUND}", missing),
                not_run(_MEMORY, "MiB", f"at most the largest weight and {_SPARE_MIB}", missing),
            ]
        )
        return
    record(_rows())


if __name__ == "__main__":
    _main()
    # vLLM's interpreter exit takes seconds and may print; everything is written by now.
    os._exit(0)
