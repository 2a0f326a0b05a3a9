"""TRT-LLM's kernel keeps weights in an order of its own, in place of the canonical ones."""

from pathlib import Path

import pytest

from syncguard.faults import FAULTS
from syncguard.observations import Unreadable
from syncguard.verdict import Status
from tests.arming import armed, world_of
from tests.pairs import Pair, make_pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang-trtllm")]

QKV = "model.layers.0.self_attn.qkv_proj"


@pytest.fixture(scope="module")
def pair(models: Path) -> Pair:
    return make_pair("sglang", "tiny-qwen3", models, "mxfp8-trtllm")


def test_whole_syncs_pass(pair: Pair) -> None:
    assert pair.judge(poison=0xA5) == {}
    pair.learner.step(1e-6)
    assert pair.judge(poison=0x5A) == {}
    assert pair.judge(same_weights=True) == {}
    kernels = {layer.module: layer.kernel for layer in pair.engine.layers()}
    assert kernels[QKV] == "flashinfer_trtllm (stand-in)"


def test_its_weights_are_probed_and_not_read(pair: Pair) -> None:
    held = pair.engine.weight_prints()["model.layers.0.self_attn.q_proj.weight"]
    assert isinstance(held, Unreadable)
    assert "an order of its own" in held.why
    assert pair.sync()["exact-probe"].status is Status.PASS


def test_a_session_that_brings_nothing_shuffles_every_layer_again(pair: Pair) -> None:
    """A fault of SGLang, with nothing injected: see docs/findings."""
    assert pair.judge() == {}
    before = pair.engine.generate([[5, 6, 7, 8]], 1, 0)[0][1][:3]
    pair.engine.finalize()
    after = pair.engine.generate([[5, 6, 7, 8]], 1, 0)[0][1][:3]
    assert abs(after - before).max() > 0.1
    found = {v.check: v for v in pair.guard.judge() if v.status is Status.FAIL}
    assert {"exact-probe", "random-probe"} <= found.keys()
    assert len(found["exact-probe"].evidence) >= 14
    assert pair.judge() == {}  # a whole sync repairs it


@pytest.mark.parametrize("name", ["session-per-bucket", "folded-without-last-mark"])
def test_what_is_harmless_beside_the_parameters_is_a_fault_here(name: str, pair: Pair) -> None:
    fired, seen = armed(name, world_of(pair))
    assert fired
    assert set(FAULTS[name].claimed_by) & seen
