"""The fault library on a live vLLM engine: what its seams reach is found there too.

One engine serves all faults, and a healthy sync comes before each. A refused bucket in the middle
of a layer leaves vLLM's layers without data for good, so the faults that cause one are left to
campaigns, which fork a process for each.
"""

import pytest

from syncguard.checks import CHECKS
from syncguard.faults import FAULTS, World
from syncguard.guard import Guard
from syncguard.reporting import Broadcast
from syncguard.runner import OBSERVABILITY
from syncguard.verdict import Status, Verdict
from tests.live.conftest import Pair, make_pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("faults")]

LIVE = (
    "activations-by-another-rule",
    "block-maximum-clamped",
    "buffer-reused-too-early",
    "check-covers-nothing",
    "checkpoint-loaded-after-a-request",
    "checkpoint-loaded-in-generate",
    "completed-only-at-the-end",
    "delta-lost",
    "derived-scale-byte",
    "derived-tensor-rebound",
    "element-low-bit",
    "folded-without-last-mark",
    "gate-and-up-swapped",
    "halves-kept-for-one-call",
    "hook-not-run-on-direct-path",
    "kernel-chosen-again",
    "last-copy-in-flight",
    "metric-missing",
    "observation-raises",
    "parameters-rebound",
    "processed-flag",
    "read-before-written",
    "rounded-to-fp8",
    "rows-rolled",
    "same-values-other-bytes",
    "scale-byte-high",
    "scale-rule-floor",
    "sent-in-place-of-another",
    "sent-twice",
    "shard-id-ignored",
    "stale-swizzled-scales",
    "temperature-applied",
    "version-of-another-run",
    "weight-never-sent",
)
"""Faults that every run of the tests meets on a live engine."""

ALIKE = (
    "base-sent-without-adapter",
    "constant-scale",
    "conversion-cached",
    "element-sign",
    "iterator-outlives-merge",
    "observation-empty",
    "probe-of-nan",
    "scale-byte-low",
    "scale-rule-ceil",
    "scale-rule-even",
    "scale-rule-nearest",
    "scale-tile-of-zeros",
    "session-per-bucket",
    "square-blocks",
    "strides-ignored",
    "unwritten-memory-sent",
    "written-into-a-copy",
    "not-a-number-left-behind",
)
"""Further ones, by mechanisms of which `LIVE` holds an example."""

_CHECKS = [check for check in CHECKS.values() if not check.reference]
_SMOKE = (
    (False, {"poison": 0xA5}),
    (True, {"poison": 0x5A}),
    (False, {"same_weights": True}),
)
"""Syncs: whether an optimizer step comes before, and the options."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("models"), "tiny-qwen3", "mxfp8")


@pytest.fixture
def world(pair: Pair) -> World:
    """Both sides, found healthy after what came before."""
    pair.clear_cache()
    assert pair.judge(poison=0xA5) == {}
    return World(lambda: pair.learner, lambda: pair.engine)


def _guard(pair: Pair) -> Guard:
    """A guard that begins anew: each fault meets a first sync."""
    vocabulary = pair.learner.checkpoint.config["vocab_size"]
    return Guard(pair.learner, pair.engine, Broadcast([]), checks=_CHECKS, vocabulary=vocabulary)


def _seen_by(verdicts: list[Verdict]) -> set[str]:
    counted = [verdict for verdict in verdicts if verdict.counts]
    silent = any(verdict.status is Status.NOT_RUN for verdict in counted)
    failed = {verdict.check for verdict in counted if verdict.status is Status.FAIL}
    return failed | ({OBSERVABILITY} if silent else set())


@pytest.mark.parametrize(
    "name", [*LIVE, *(pytest.param(name, marks=pytest.mark.slow) for name in ALIKE)]
)
def test_found_on_a_live_engine(name: str, world: World, pair: Pair) -> None:
    fault = FAULTS[name]
    site = fault.sites_in(world)[0]
    guard = _guard(pair)
    verdicts: list[Verdict] = []
    with fault.armed(world, site):
        for steps, options in _SMOKE:
            if steps:
                world.learner.step(1e-6)
            _, verdicts = guard.sync(bucket_bytes=200_000, **options)
            if world.fired:
                break
        fired = world.fired
    assert fired
    assert set(fault.claimed_by) <= _seen_by(verdicts)
