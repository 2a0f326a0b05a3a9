"""A live engine that holds serialized MXFP8, as a ModelOpt checkpoint does."""

from pathlib import Path

import pytest

from syncguard.checks import CHECKS
from syncguard.verdict import Status
from tests.live.conftest import make_pair
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("modelopt")]


@pytest.fixture(scope="session")
def healthy(models: Path) -> Pair:
    return make_pair(models, "tiny-qwen3", "modelopt-mxfp8")


@pytest.fixture(scope="session")
def overexcluded(models: Path) -> Pair:
    exclude = ("lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate")
    return make_pair(models, "tiny-qwen3", "modelopt-mxfp8", exclude=exclude)


def test_elements_and_scales_travel_and_are_served(healthy: Pair) -> None:
    assert healthy.judge(poison=0xA5) == {}
    healthy.learner.step(1e-6)
    assert healthy.judge(poison=0x5A) == {}
    assert healthy.judge(same_weights=True) == {}
    ledger = healthy.sync()["ledger"]
    assert "39 weights arrived and were written exactly once" in ledger.message


def test_router_exclusion_swallows_gate_up(overexcluded: Pair) -> None:
    """F2 in real code: vLLM's ModelOpt matcher takes the exclusion for a substring.

    Judged without a sync: a refused one leaves rotary tables, which engines of a process share,
    without data.
    """
    pair = overexcluded
    verdict = CHECKS["layer-set"].judge(pair.learner.layers(), pair.engine.layers())
    assert verdict.status is Status.FAIL
    swallowed = {
        f"model.layers.{layer}.mlp.{part}_proj.weight"
        for layer in (0, 1)
        for part in ("gate", "up")
    }
    assert {name for name, _ in verdict.evidence} == swallowed
    assert all(text == "learner mxfp8, engine bf16" for _, text in verdict.evidence)
    assert "an exclusion pattern matches more than was meant" in verdict.message
