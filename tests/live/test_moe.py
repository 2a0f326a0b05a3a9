"""A live mixture with MXFP8 experts: healthy syncs pass, each fault is found at its expert."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from syncguard.verdict import Reason, Status
from tests.live.conftest import clear_cache, make_pair
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("moe")]

LAYER = "model.layers.1.mlp"
EXPERTS = f"{LAYER}.experts.routed_experts"
Weights = Iterator[tuple[str, torch.Tensor]]


def name(expert: int, part: str) -> str:
    return f"{LAYER}.experts.{expert}.{part}_proj.weight"


@pytest.fixture(scope="session")
def _moe(models: Path) -> Pair:
    return make_pair(models, "tiny-qwen3-moe", "mxfp8")


@pytest.fixture
def moe(_moe: Pair) -> Pair:
    """An engine with MXFP8 experts that has just been synchronized and found healthy."""
    clear_cache(_moe)
    assert _moe.judge() == {}
    return _moe


def renamed(pair: Pair, monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> None:
    """Let the learner send some weights under the names of others; empty: not at all."""
    weights = pair.learner.weights

    def sent() -> Weights:
        for own, tensor in weights():
            if wire := names.get(own, own):
                yield wire, tensor

    monkeypatch.setattr(pair.learner, "weights", sent)


def found(pair: Pair, **options: Any) -> dict[str, dict[str, str]]:
    """Sync, and tell what each failing check says, by weight or path."""
    return {
        check: dict(verdict.evidence)
        for check, verdict in pair.sync(**options).items()
        if verdict.status is Status.FAIL
    }


def test_every_condition_passes_with_full_coverage(moe: Pair) -> None:
    verdicts = moe.sync(poison=0xA5)
    assert {v.condition for v in verdicts.values()} >= {f"C{n}" for n in range(1, 8)}
    applicable = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert {v.check: v.message for v in applicable if v.status is not Status.PASS} == {}
    # The router's bytes are in oneDNN's packed copy, and only the exact probe can tell them.
    missed = {v.check: v.coverage for v in applicable if not v.coverage.complete}
    assert missed.keys() == {"fresh-at-use", "poison-coverage", "weight-values"}
    assert {(x.layers_checked, x.layers_total) for x in missed.values()} == {(34, 35)}
    weights = len(moe.learner.layers())
    assert verdicts["weight-bytes"].coverage.layers_checked == weights == 35
    assert verdicts["exact-probe"].coverage.layers_checked == 26
    moe.learner.step(1e-6)
    assert moe.judge(poison=0x5A) == {}
    assert moe.judge(same_weights=True) == {}


def test_experts_router_and_dense_layers_are_told_apart(moe: Pair) -> None:
    table = {layer.module: layer for layer in moe.engine.layers()}
    both, down = table[f"{EXPERTS}.w13_weight"], table[f"{EXPERTS}.w2_weight"]
    assert both.parts == tuple(name(e, part) for e in range(4) for part in ("gate", "up"))
    assert down.parts == tuple(name(e, "down") for e in range(4))
    assert (both.kernel, both.grid, both.activations) == ("CpuMxfp8Experts", "mxfp8", "mxfp8")
    assert (table[f"{LAYER}.gate"].grid, table[f"{LAYER}.gate"].kernel) == ("bf16", "")
    assert table["model.layers.0.mlp.gate_up_proj"].kernel == "CpuMxfp8LinearKernel"


def test_shared_expert_and_router_bias_are_served_too(models: Path) -> None:
    pair = make_pair(models, "tiny-glm4-moe", "mxfp8")
    assert pair.judge(poison=0xA5) == {}
    table = {layer.module: layer for layer in pair.engine.layers()}
    shared = table[f"{LAYER}.shared_experts.gate_up_proj"]
    assert shared.parts[0] == f"{LAYER}.shared_experts.gate_proj.weight"
    assert (shared.grid, table[f"{LAYER}.gate"].grid) == ("mxfp8", "fp32")
    assert f"{LAYER}.gate.e_score_correction_bias" in pair.engine.weight_prints()


def test_kernel_reads_derived_tensors_only(moe: Pair) -> None:
    layer = moe.model.get_submodule(EXPERTS)
    before = moe.engine.probe_exact()
    for matrix in ("w13_weight", "w2_weight"):
        getattr(layer, matrix).data.view(torch.uint8).fill_(0x5A)
        getattr(layer, f"{matrix}_scale").data.fill_(0x5A)
    after = moe.engine.probe_exact()
    same = {key: (after[key].rows["values"] == x.rows["values"]).all() for key, x in before.items()}
    assert all(same.values())
    elements = moe.engine.weight_prints()[name(3, "down")].rows["elements"]
    assert len(set(elements.tolist())) == 1


def test_swapped_gate_and_up_of_one_expert(moe: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, up = name(2, "gate"), name(2, "up")
    renamed(moe, monkeypatch, {gate: up, up: gate})
    told = found(moe)
    assert set(told["weight-bytes"]) == set(told["exact-probe"]) == {gate, up}
    assert f"holds row 0 of the learner's {up}" in told["weight-bytes"][gate]
    assert f"which holds row 0 of the learner's {gate}" in told["exact-probe"][up]


def test_two_experts_exchanged(moe: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ("gate", "up", "down")
    exchanged = {name(a, part): name(b, part) for a, b in ((0, 3), (3, 0)) for part in parts}
    renamed(moe, monkeypatch, exchanged)
    told = found(moe)
    assert set(told["weight-bytes"]) == set(told["exact-probe"]) == set(exchanged)
    assert f"learner's {name(3, 'down')}" in told["weight-bytes"][name(0, "down")]


def test_one_expert_never_sent(moe: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    never = {name(1, part) for part in ("gate", "up", "down")}
    renamed(moe, monkeypatch, dict.fromkeys(never, ""))
    told = found(moe, poison=0xA5)
    assert told["ledger"] == dict.fromkeys(sorted(never), "never arrived")
    assert EXPERTS in told["session"]
    assert never <= set(told["weight-bytes"])


def test_one_stale_expert_scale(moe: Pair) -> None:
    """F3: one byte of the derived scales of one expert is not what its canonical scales give."""
    layer = moe.model.get_submodule(EXPERTS)
    derived = layer.w13_weight_scale_swizzled[3]
    derived[0] += 1
    verdicts = {verdict.check: verdict for verdict in moe.guard.judge()}
    derived[0] -= 1
    probe, again = verdicts["exact-probe"], verdicts["re-derivation"]
    assert (probe.subject, again.subject) == (name(3, "gate"), name(3, "gate"))
    assert "1 of 192 output rows differ, the first is 0" in probe.message
    assert dict(again.evidence) == {f"{EXPERTS}.w13_weight_scale_swizzled[3]": "1 byte"}
    assert verdicts["weight-bytes"].status is Status.PASS


def test_post_processing_that_is_skipped_fails_c3_only(
    moe: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: fresh canonical experts under a shuffled copy of the old ones."""
    from syncguard.engines.vllm import experts

    moe.learner.perturb(1, scale=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(experts, "install", lambda *_: None)
        told = found(moe)
    assert {"exact-probe", "re-derivation"} <= told.keys()
    assert all(name(e, part) in told["exact-probe"] for e in range(4) for part in ("gate", "down"))
    assert not {"weight-bytes", "weight-values", "layer-set", "ledger"} & told.keys()
