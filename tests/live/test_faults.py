"""The fault library on a live vLLM engine: what its seams reach is found there too.

One engine serves all faults, and a healthy sync comes before each. A refused bucket in the middle
of a layer leaves vLLM's layers without data for good, so the faults that cause one are left to
campaigns, which fork a process for each.
"""

import pytest

from syncguard.faults import FAULTS, World
from tests.arming import armed, world_of
from tests.live.conftest import clear_cache, make_pair
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("faults")]

LIVE = (
    "activations-by-another-rule",
    "buffer-reused-too-early",
    "check-covers-nothing",
    "checkpoint-loaded-after-a-request",
    "delta-lost",
    "derived-scale-byte",
    "derived-tensor-rebound",
    "folded-without-last-mark",
    "gate-and-up-swapped",
    "halves-kept-for-one-call",
    "hook-not-run-on-direct-path",
    "kernel-chosen-again",
    "metric-missing",
    "parameters-rebound",
    "read-before-written",
    "rows-rolled",
    "scale-byte-high",
    "sent-in-place-of-another",
    "shard-id-ignored",
    "stale-swizzled-scales",
    "temperature-applied",
    "weight-never-sent",
)
"""Faults that every run of the tests meets on a live engine."""

ALIKE = (
    "base-sent-without-adapter",
    "block-maximum-clamped",
    "checkpoint-loaded-in-generate",
    "completed-only-at-the-end",
    "constant-scale",
    "conversion-cached",
    "element-low-bit",
    "element-sign",
    "iterator-outlives-merge",
    "last-copy-in-flight",
    "not-a-number-left-behind",
    "observation-empty",
    "observation-raises",
    "probe-of-nan",
    "processed-flag",
    "rounded-to-fp8",
    "same-values-other-bytes",
    "scale-byte-low",
    "scale-rule-ceil",
    "scale-rule-even",
    "scale-rule-floor",
    "scale-rule-nearest",
    "scale-tile-of-zeros",
    "sent-twice",
    "session-per-bucket",
    "square-blocks",
    "strides-ignored",
    "unwritten-memory-sent",
    "version-of-another-run",
    "written-into-a-copy",
)
"""Further ones, by mechanisms of which `LIVE` holds an example."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("models"), "tiny-qwen3", "mxfp8")


@pytest.fixture
def world(pair: Pair) -> World:
    """Both sides, found healthy after what came before."""
    clear_cache(pair)
    return world_of(pair)


@pytest.mark.parametrize(
    "name", [*LIVE, *(pytest.param(name, marks=pytest.mark.slow) for name in ALIKE)]
)
def test_found_on_a_live_engine(name: str, world: World) -> None:
    fired, seen = armed(name, world)
    assert fired
    assert set(FAULTS[name].claimed_by) <= seen
