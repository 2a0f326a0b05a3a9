"""Mixtures of experts in MXFP8 on a live SGLang, whose kernel keeps no canonical copy of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from syncguard.engines.sglang.expert_standins import KERNEL
from syncguard.observations import Unreadable
from syncguard.verdict import Status, Verdict
from tests.live_sglang.doubling import serve_doubled
from tests.pairs import Pair, make_pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang-experts")]

EXPERTS = "model.layers.1.mlp.experts"
ROUTER = "model.layers.1.mlp.gate"
GATE, UP, DOWN = (f"{EXPERTS}.2.{part}_proj.weight" for part in ("gate", "up", "down"))
PARTS = ("gate", "up", "down")

Wire = Iterator[tuple[str, torch.Tensor]]


@pytest.fixture(scope="module")
def _pair(models: Path) -> Pair:
    return make_pair("sglang", "tiny-qwen3-moe-wide", models, "mxfp8")


@pytest.fixture
def pair(_pair: Pair) -> Pair:
    """Just synchronized, and found healthy."""
    assert _pair.judge() == {}
    return _pair


def weights_of(expert: int) -> set[str]:
    return {f"{EXPERTS}.{expert}.{part}_proj.weight" for part in PARTS}


def failing(pair: Pair) -> dict[str, Verdict]:
    return {v.check: v for v in pair.guard.judge() if v.status is Status.FAIL}


def named(verdict: Verdict) -> set[str]:
    return set(dict(verdict.evidence))


def on_wire(pair: Pair, change: Callable[[Wire], Wire]) -> dict[str, Verdict]:
    weights = pair.learner.weights
    pair.learner.weights = lambda: change(weights())
    try:
        return pair.sync()
    finally:
        pair.learner.weights = weights


def test_every_expert_is_covered_and_the_router_told_apart(pair: Pair) -> None:
    verdicts = pair.sync(poison=0xA5)
    assert {v.check: v.message for v in verdicts.values() if v.counts and v.status != "pass"} == {}
    weights = len(pair.learner.layers())
    assert verdicts["weight-bytes"].coverage.layers_checked == weights == 45
    assert verdicts["exact-probe"].coverage.complete
    assert verdicts["random-probe"].coverage.complete
    table = {layer.module: layer for layer in pair.engine.layers()}
    for matrix, parts in (("w13_weight", 8), ("w2_weight", 4)):
        layer = table[f"{EXPERTS}.{matrix}"]
        assert (layer.kernel, layer.grid) == (f"{KERNEL} (stand-in)", "mxfp8")
        assert len(layer.parts) == parts
    assert (table[ROUTER].kernel, table[ROUTER].grid) == ("", "bf16")
    pair.learner.step(1e-6)
    assert pair.judge(poison=0x5A) == {}
    assert pair.judge(same_weights=True) == {}


def test_experts_are_probed_and_not_read(pair: Pair) -> None:
    held = pair.engine.weight_prints()[UP]
    assert isinstance(held, Unreadable)
    assert "w13_weight in an order of its own" in held.why
    assert "life cycle" in pair.engine.environment()["stand-ins"]


def test_the_served_policy_is_the_learners(pair: Pair) -> None:
    """An instrument of its own: log-probabilities; and that it would tell."""
    sequences = np.random.default_rng(0).integers(0, 511, (8, 24)).tolist()

    def distance() -> float:
        served = [
            scores[: len(ids) - 1]
            for ids, (_, scores) in zip(
                sequences, pair.engine.generate(sequences, 1, 0), strict=True
            )
        ]
        wanted = pair.learner.logprobs(sequences)
        return float(np.mean(abs(np.concatenate(served) - np.concatenate(wanted))))

    healthy = distance()
    pair.model.get_submodule(EXPERTS).w2_weight.data[:] = 0
    assert 3 * healthy < distance()
    assert pair.judge() == {}


def test_gate_and_up_of_one_expert_swapped(pair: Pair) -> None:
    def swapped(weights: Wire) -> Wire:
        other = {GATE: UP, UP: GATE, f"{GATE}_scale": f"{UP}_scale", f"{UP}_scale": f"{GATE}_scale"}
        return ((other.get(name, name), x) for name, x in weights)

    verdicts = on_wire(pair, swapped)
    assert verdicts["session"].status is Status.PASS
    assert named(verdicts["exact-probe"]) == {GATE, UP}
    assert pair.judge() == {}


@pytest.mark.parametrize(
    ("matrix", "parts"),
    [("w13_weight", {GATE, UP}), pytest.param("w2_weight", {DOWN}, marks=pytest.mark.slow)],
)
def test_one_stale_scale_of_one_expert(matrix: str, parts: set[str], pair: Pair) -> None:
    scales = getattr(pair.model.get_submodule(EXPERTS), f"{matrix}_scale_inv").data[2]
    scales.view(-1)[5] += 1
    found = failing(pair)
    assert len(named(found["exact-probe"])) == 1
    assert named(found["exact-probe"]) <= parts
    assert pair.judge() == {}


@pytest.mark.slow
@pytest.mark.parametrize("matrix", ["w13_weight", "w2_weight"])
def test_stale_scales_of_one_expert(matrix: str, pair: Pair) -> None:
    """Fresh elements meet the scales of the sync before."""
    name = f"{matrix}_scale_inv"
    module: Any = pair.model.get_submodule(EXPERTS)
    stale = getattr(module, name).data[2].clone()
    pair.learner.perturb(1, scale=0.1)
    assert pair.judge() == {}
    getattr(module, name).data[2] = stale
    found = failing(pair)
    assert named(found["exact-probe"]) <= weights_of(2)
    assert found["exact-probe"].evidence
    assert pair.judge() == {}


def test_two_experts_exchanged(pair: Pair) -> None:
    module: Any = pair.model.get_submodule(EXPERTS)
    for name, held in module.named_parameters():
        assert name.startswith(("w13_weight", "w2_weight"))
        held.data[[0, 3]] = held.data[[3, 0]]
    found = failing(pair)
    assert named(found["exact-probe"]) == weights_of(0) | weights_of(3)
    assert pair.judge() == {}


def test_one_expert_that_was_never_sent(pair: Pair) -> None:
    pair.learner.perturb(2, scale=0.1)
    verdicts = on_wire(
        pair, lambda weights: ((n, x) for n, x in weights if not n.startswith(f"{EXPERTS}.2."))
    )
    assert verdicts["session"].status is Status.PASS  # SGLang counts nothing
    fates = dict(verdicts["ledger"].evidence)
    assert {name for name in fates if not name.endswith("_scale")} == weights_of(2)
    assert set(fates.values()) == {"never arrived"}
    assert named(verdicts["exact-probe"]) == weights_of(2)
    assert pair.judge() == {}


def test_a_session_that_brings_nothing_shuffles_experts_again(pair: Pair) -> None:
    """A fault of SGLang, with nothing injected: see docs/findings."""
    pair.engine.finalize()
    found = failing(pair)
    assert len(named(found["exact-probe"])) >= 8
    assert all(".experts." in name for name in named(found["exact-probe"]))
    assert pair.judge() == {}  # a whole sync repairs it


def test_a_method_that_serves_other_matrices_is_not_probed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_doubled(pair.model.get_submodule(EXPERTS).quant_method, monkeypatch)
    held: Any = pair.engine.probe_exact()[UP]
    assert "not of the parameters as they are" in held.why


@pytest.mark.slow
def test_canonical_bytes_in_the_kernels_place(pair: Pair) -> None:
    """F4: shape and dtype are the same before and after, so nothing else tells."""
    with pair.seam("post_process", EXPERTS).wrap(lambda _: lambda *args, **kwargs: None):
        verdicts = pair.sync()
    assert verdicts["session"].status is verdicts["ledger"].status is Status.PASS
    assert named(verdicts["exact-probe"]) == {n for i in range(4) for n in weights_of(i)}
    assert verdicts["random-probe"].status is Status.FAIL
    assert pair.judge() == {}
