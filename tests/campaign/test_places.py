import pytest

from syncguard.campaign.live import LIVE
from syncguard.campaign.options import CampaignOptions
from syncguard.campaign.pins import Pins, model_traits, unmet
from syncguard.campaign.places import kind, make_place, refusal
from syncguard.campaign.planning import chosen_faults, grouped
from syncguard.errors import Unsupported

FREE = Pins()
MODEL = {"model_type": "qwen3_moe", "num_experts": 8, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        ({}, ""),
        ({"linear_kernel": "swizzled", "layers": 1, "tied": True, "wire": "mxfp8"}, ""),
        ({"experts": 4}, ""),
        ({"ranks": 2}, ""),
        ({"kv_scales": True}, "needs kv_scales=True, which the live engine is not"),
        (
            {"ranks": 2, "linear_kernel": "twin"},
            "needs linear_kernel='twin', which the live engine is not",
        ),
    ],
)
def test_a_live_engine_is_what_it_is(topology: dict[str, object], why: str) -> None:
    assert refusal("vllm", topology) == why
    assert refusal("stub", topology) == ""


def test_it_is_what_a_fault_needs_as_far_as_nothing_is_fixed() -> None:
    choose = LIVE["vllm"].choose
    told = [
        str(choose(topology, FREE))
        for topology in (
            {},
            {"wire": "mxfp8"},
            {"quantization": "none"},
            {"tied": True},
            {"experts": 4, "layers": 1},
            {"experts": 4, "correction_bias": True},
            {"ranks": 2, "layers": 1},
            {"path": "reload"},
        )
    ]
    assert told == [
        "tiny-qwen3, quantization mxfp8",
        "tiny-qwen3, quantization modelopt-mxfp8",
        "tiny-qwen3, quantization none",
        "tiny-qwen3-tied, quantization mxfp8",
        "tiny-qwen3-moe, quantization mxfp8",
        "tiny-glm4-moe, quantization mxfp8",
        "tiny-qwen3, quantization mxfp8, 2 ranks",
        "tiny-qwen3, quantization mxfp8, path reload",
    ]
    sglang = LIVE["sglang"].choose({"ranks": 2}, FREE)
    assert str(sglang) == "tiny-qwen3-wide, quantization mxfp8, 2 ranks"


def test_what_is_fixed_is_not_left_to_a_fault() -> None:
    pins = Pins("tiny-qwen3-moe", "modelopt-mxfp8", "extension", 2, "own")
    told = "tiny-qwen3-moe, quantization modelopt-mxfp8, path extension, 2 ranks, process own"
    assert str(LIVE["vllm"].choose({}, pins)) == told
    assert kind("vllm", {"experts": 4, "layers": 1}, pins) == told
    assert refusal("vllm", {"tied": True}, pins) == (
        "needs tied=True, which the live engine is not with model tiny-qwen3-moe, quantization "
        "modelopt-mxfp8, path extension, tp 2, process own"
    )
    assert refusal("vllm", {"quantization": "none"}, pins).startswith("needs quantization='none'")
    assert "needs ranks=2" in refusal("vllm", {"ranks": 2}, Pins(ranks=1))


def test_a_mode_is_taken_for_a_fault_only_if_it_is_offered() -> None:
    assert refusal("sglang", {"wire": "bf16"}).startswith("needs wire='bf16'")
    online = LIVE["sglang"].choose({"wire": "bf16"}, Pins(quantization="mxfp8-online"))
    assert str(online) == "tiny-qwen3, quantization mxfp8-online"
    shuffled = {"linear_kernel": "shuffled"}
    assert refusal("sglang", shuffled) != ""
    assert refusal("sglang", shuffled, Pins(quantization="mxfp8-trtllm")) == ""


def test_a_models_configuration_says_what_it_is() -> None:
    assert model_traits(MODEL) == {
        "bias": False,
        "correction_bias": False,
        "experts": 8,
        "shared_expert": False,
        "tied": False,
    }
    glm = model_traits({"model_type": "glm4_moe", "n_routed_experts": 4, "n_shared_experts": 1})
    assert glm == {**model_traits({}), "correction_bias": True, "experts": 4, "shared_expert": True}


def test_some_experts_are_as_good_as_others() -> None:
    needs = {"experts": 4, "layers": 1, "unheard_of": 1}
    assert unmet(needs, {"experts": 8, "layers": 2}) == []
    assert unmet(needs, {"experts": 0, "layers": 1}) == ["experts=4"]


def test_a_fixed_stub_is_no_other() -> None:
    pins = Pins(model="stub-moe", quantization="none")
    assert refusal("stub", {"experts": 2, "layers": 1}, pins) == ""
    assert refusal("stub", {"tied": True}, pins) == "needs tied=True, which stub-moe is not"
    assert "needs quantization='mxfp8'" in refusal("stub", {"quantization": "mxfp8"}, pins)
    place = make_place("stub", {"experts": 2}, 0, pins)
    assert place.world.engine.topology.experts == 4
    assert place.world.engine.topology.quantization == "none"
    with pytest.raises(Unsupported, match="needs tied=True"):
        make_place("stub", {"tied": True}, 0, pins)


def test_the_command_line_can_say_what_is_fixed() -> None:
    assert list(Pins("stub-moe", ranks=2).words()) == ["--model", "stub-moe", "--tp", "2"]
    assert Pins("stub-moe", ranks=2).told() == {"model": "stub-moe", "tp": "2"}
    assert not list(FREE.words())


def test_healthy_runs_ask_only_for_what_an_engine_can_be() -> None:
    for name, each in LIVE.items():
        refused = [refusal(name, topology) for topology in each.healthy]
        assert refused == [""] * len(each.healthy)


def test_it_is_not_started_in_vain() -> None:
    with pytest.raises(Unsupported, match="needs kv_scales=True"):
        make_place("vllm", {"kv_scales": True}, 0)


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


def test_faults_that_need_one_engine_share_it() -> None:
    options = CampaignOptions(engine="vllm", faults=("rank-*", "sent-twice", "stale-tied-head"))
    named = [{fault.name for fault in alike} for alike in grouped(options, chosen_faults(options))]
    assert named == [
        {"sent-twice"},
        {"stale-tied-head"},
        {"rank-deaf", "rank-not-updated", "rank-silent"},
    ]
