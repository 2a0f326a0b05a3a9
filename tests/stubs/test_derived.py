"""Every derived kind is really what serves: left stale, it serves the old weights."""

from collections.abc import Callable
from typing import Any

import pytest

from syncguard.stubs import StubLearner, Topology
from tests.stubs.helpers import (
    differing_prints,
    differing_probes,
    pair,
    policy_gap,
    rederived_wrong,
    skipping,
    sync,
)

_QKV = "model.layers.0.self_attn.qkv_proj"
_KV_B = "model.layers.0.self_attn.kv_b_proj"
_EXPERTS = "model.layers.0.mlp.experts"
_PARTS = {f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"}
_GATES = {f"model.layers.0.mlp.experts.{e}.{p}_proj.weight" for e in (0, 1) for p in ("gate", "up")}
_DOWNS = {f"model.layers.0.mlp.experts.{e}.down_proj.weight" for e in (0, 1)}
_MOE: dict[str, Any] = {"layers": 1, "experts": 2, "top_k": 1}

# Topology, site of post_process, weights whose serving path is stale, whether bytes tell too.
_KINDS: dict[str, tuple[Topology, str, set[str], bool]] = {
    "swizzled scales": (Topology(layers=1), _QKV, _PARTS, False),
    "twin": (Topology(layers=1, linear_kernel="twin"), _QKV, _PARTS, False),
    "cache made at first use": (Topology(layers=1, linear_kernel="cached"), _QKV, _PARTS, False),
    "levels": (Topology(layers=1, linear_kernel="two_level"), _QKV, _PARTS, False),
    "rows shuffled in place": (Topology(layers=1, linear_kernel="shuffled"), _QKV, _PARTS, True),
    "expert halves swapped": (
        Topology(**_MOE, expert_kernel="swapped"),
        _EXPERTS,
        _GATES | _DOWNS,
        True,
    ),
    "expert halves interleaved": (
        Topology(**_MOE, expert_kernel="interleaved"),
        _EXPERTS,
        _GATES,
        True,
    ),
    "unquantized halves swapped": (
        Topology(**_MOE, expert_kernel="swapped", quantization="none"),
        _EXPERTS,
        _GATES,
        True,
    ),
    "expert rows shuffled": (
        Topology(**_MOE, expert_kernel="shuffled"),
        _EXPERTS,
        _GATES | _DOWNS,
        True,
    ),
    "expert twins": (Topology(**_MOE, expert_kernel="twin"), _EXPERTS, _GATES | _DOWNS, False),
    "packed head": (Topology(layers=1), "lm_head", {"lm_head.weight"}, False),
    "packed tied head": (Topology(layers=1, tied=True), "lm_head", {"lm_head.weight"}, False),
    "absorbed products": (
        Topology(layers=1, attention="mla"),
        "model.layers.0.self_attn.attn",
        {f"{_KV_B}.weight"},
        False,
    ),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_stale_copy_is_served(kind: str) -> None:
    topology, site, weights, in_place = _KINDS[kind]
    learner, engine = pair(topology)
    sync(learner, engine)
    policy_gap(learner, engine)  # builds what is built at first use
    learner.perturb(0.3, seed=1)
    with engine.seams()["post_process"][site].wrap(skipping):
        sync(learner, engine, 2)
    assert differing_probes(learner, engine) == weights
    assert policy_gap(learner, engine) > 0.1
    assert bool(differing_prints(learner, engine)) == in_place
    if not in_place and "head" not in kind:
        assert all(site in path for path in rederived_wrong(engine))
        assert rederived_wrong(engine)
    sync(learner, engine, 3)
    assert not differing_probes(learner, engine)
    assert policy_gap(learner, engine) < 0.05


@pytest.mark.parametrize("layout", ["shuffled", "interleaved", "swapped"])
def test_processing_twice_corrupts_what_is_reordered_in_place(layout: str) -> None:
    topology = Topology(**_MOE, expert_kernel=layout)
    learner, engine = pair(topology)

    def twice(original: Callable[..., Any]) -> Callable[..., Any]:
        def again(layer: Any) -> None:
            original(layer)
            original(layer)

        return again

    with engine.seams()["post_process"][_EXPERTS].wrap(twice):
        sync(learner, engine)
    # Swapping halves twice is the identity, and so is not the order that the kernel reads.
    assert differing_probes(learner, engine)


def test_levels_of_the_sync_before() -> None:
    topology = Topology(**_MOE, expert_kernel="two_level")
    learner, engine = pair(topology)
    sync(learner, engine)
    _scale_experts(learner, 4.0)

    def before(original: Callable[..., Any]) -> Callable[..., Any]:
        def late(layer: Any) -> Any:
            kept = {name: level.clone() for name, level in layer.kernel.levels.items()}
            original(layer)
            return kept

        return late

    with engine.seams()["level"][_EXPERTS].wrap(before):
        sync(learner, engine, 2)
    assert not differing_prints(learner, engine)
    assert differing_probes(learner, engine) == _GATES | _DOWNS
    assert {path.rpartition("_")[2] for path in rederived_wrong(engine)} == {"level"}
    sync(learner, engine, 3)
    assert not rederived_wrong(engine)
    assert not differing_probes(learner, engine)


def test_constants_are_read() -> None:
    learner, engine = pair(Topology(**_MOE))
    sync(learner, engine)
    engine.ranks[0].layer(_EXPERTS).constants.limit.fill_(0.01)
    assert policy_gap(learner, engine) > 0.1


def test_workspace_is_read() -> None:
    learner, engine = pair(Topology(layers=1))
    sync(learner, engine)
    engine.ranks[0].layer(_QKV).kernel.workspace.fill_(1.0)
    assert policy_gap(learner, engine) > 0.1


@pytest.mark.parametrize("weight", ["sinks", "k_scale", "v_scale"])
def test_attention_state_is_read(weight: str) -> None:
    learner, engine = pair(Topology(layers=1, sinks=True, kv_scales=True))
    sync(learner, engine)
    held = getattr(engine.ranks[0].layer("model.layers.0.self_attn.attn"), weight)
    held.mul_(0).add_(5.0 if weight == "sinks" else 1e-4)
    assert differing_prints(learner, engine) == {f"model.layers.0.self_attn.{weight}"}
    assert policy_gap(learner, engine) > 0.05


def test_correction_bias_is_read() -> None:
    learner, engine = pair(Topology(layers=1, experts=4, top_k=1))
    sync(learner, engine)
    bias = engine.ranks[0].layer("model.layers.0.mlp.gate").e_score_correction_bias
    assert bias.dtype.itemsize == 4
    bias.copy_(bias.bfloat16())
    prompts = [[a, b, a + b, a, b] for a in range(8) for b in range(8)]
    assert policy_gap(learner, engine, prompts=prompts) > 0.1


def _scale_experts(learner: StubLearner, factor: float) -> None:
    for name, tensor in learner.weights():
        if ".experts." in name:
            tensor.mul_(factor)
