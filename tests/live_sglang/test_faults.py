"""The fault library on a live SGLang engine: what its seams reach is found there too.

One engine serves all faults. What a fault leaves behind for good, as padded scales, is left to
campaigns, which fork a process for each.
"""

from pathlib import Path

import pytest

from syncguard.campaign import CellSpec, run_cell
from syncguard.campaign.cell import Outcome
from syncguard.engines.sglang.equivalent import EQUIVALENT
from syncguard.faults import FAULTS, World
from tests.arming import armed, world_of
from tests.pairs import Pair, make_pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang")]

FOUND = (
    "activations-by-another-rule",
    "check-covers-nothing",
    "checkpoint-loaded-after-a-request",
    "delta-lost",
    "derived-scale-byte",
    "derived-tensor-rebound",
    "gate-and-up-swapped",
    "halves-kept-for-one-call",
    "hook-not-run-on-direct-path",
    "kernel-chosen-again",
    "metric-missing",
    "processed-flag",
    "read-before-written",
    "rows-rolled",
    "sent-in-place-of-another",
    "shard-id-ignored",
    "stale-swizzled-scales",
    "temperature-applied",
    "weight-never-sent",
    "written-into-a-copy",
)
"""Faults that every run of the tests meets on a live engine."""

ALIKE = (
    "base-sent-without-adapter",
    "checkpoint-loaded-in-generate",
    "conversion-cached",
    "hook-of-a-wrapper-fails",
    "iterator-outlives-merge",
    "names-of-another-version",
    "not-a-number-left-behind",
    "observation-empty",
    "observation-raises",
    "probe-of-nan",
    "rounded-to-fp8",
    "scale-names-of-another-layer",
    "sent-twice",
    "shard-sent-without-gather",
    "strides-ignored",
    "unquantized-weight-sent",
    "unwritten-memory-sent",
    "version-not-committed",
    "version-of-another-run",
)
"""Further ones, by mechanisms of which `FOUND` holds an example."""


@pytest.fixture(scope="module")
def pair(models: Path) -> Pair:
    return make_pair("sglang", "tiny-qwen3", models, "mxfp8")


@pytest.fixture
def world(pair: Pair) -> World:
    return world_of(pair)


@pytest.mark.parametrize(
    "name", [*FOUND, *(pytest.param(name, marks=pytest.mark.slow) for name in ALIKE)]
)
def test_found_on_a_live_engine(name: str, world: World) -> None:
    fired, seen = armed(name, world)
    assert fired
    assert set(FAULTS[name].claimed_by) & seen


@pytest.mark.parametrize("name", EQUIVALENT["mxfp8"])
def test_what_is_called_equivalent_is_seen_by_no_check(name: str, world: World) -> None:
    fired, seen = armed(name, world)
    assert fired
    assert seen <= {"ledger"}  # which follows loaders, and sees who writes out of turn
    assert world.why_equivalent(name)


def test_a_campaign_starts_an_engine_of_its_own(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(models))
    site = "model.layers.1.mlp.down_proj.weight_scale_inv_swizzled"
    cell = run_cell(CellSpec("stale-swizzled-scales", site, "load", "sglang", 0))
    assert cell.outcome is Outcome.DETECTED
    assert {"cold-warm", "exact-probe", "re-derivation"} <= set(cell.detected_by)
    assert "weight-bytes" not in cell.detected_by
