import pytest

from syncguard.campaign.live import LIVE, live_model
from syncguard.campaign.places import make_place, refusal
from syncguard.errors import Unsupported


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        ({}, ""),
        ({"linear_kernel": "swizzled", "layers": 1, "tied": True, "wire": "mxfp8"}, ""),
        ({"experts": 4}, "needs experts=4, which the live engine is not"),
        (
            {"ranks": 2, "linear_kernel": "twin"},
            "needs ranks=2, linear_kernel='twin', which the live engine is not",
        ),
    ],
)
def test_a_live_engine_is_what_it_is(topology: dict[str, object], why: str) -> None:
    assert refusal("vllm", topology) == why
    assert refusal("stub", topology) == ""


def test_the_wire_is_the_engines_where_a_fault_leaves_it_open() -> None:
    sglang, vllm = LIVE["sglang"], LIVE["vllm"]
    assert sglang.mode({}) == ("mxfp8", "mxfp8", "mxfp8")
    assert sglang.mode({"quantization": "none"}) == ("none", "bf16", "none")
    assert vllm.mode({}) == ("mxfp8", "bf16", "mxfp8")
    assert vllm.mode({"wire": "mxfp8"}) == ("mxfp8", "mxfp8", "modelopt-mxfp8")
    assert sglang.refusal({"wire": "bf16"}) == "needs wire='bf16', which the live engine is not"


def test_healthy_runs_ask_only_for_what_an_engine_can_be() -> None:
    for each in LIVE.values():
        assert [each.refusal(topology) for topology in each.healthy] == [""] * len(each.healthy)


def test_it_is_not_started_in_vain() -> None:
    with pytest.raises(Unsupported, match="needs experts=4"):
        make_place("vllm", {"experts": 4}, 0)


def test_a_tied_head_needs_another_model() -> None:
    assert [live_model({}), live_model({"tied": True})] == ["tiny-qwen3", "tiny-qwen3-tied"]


def test_a_stub_may_have_any_topology() -> None:
    place = make_place("stub", {"experts": 2, "layers": 1, "wire": "mxfp8"}, 3)
    assert "experts=2" in place.topology
    assert place.vocabulary == 96
    assert place.nbytes == sum(tensor.nbytes for _, tensor in place.world.learner.weights())


def test_a_cold_engine_holds_the_learners_weights() -> None:
    place = make_place("stub", {"layers": 1}, 0)
    assert place.start_cold is not None
    cold = place.start_cold()
    wanted = place.world.learner.value_prints()
    for weight, held in cold.probe_exact().items():
        assert (held.rows["values"] == wanted[weight]).all()  # type: ignore[union-attr]
