"""Mixtures of experts on a live SGLang, unquantized."""

from pathlib import Path
from typing import Any

import pytest
import torch

from syncguard.verdict import Status
from tests.live_sglang.doubling import serve_doubled
from tests.pairs import Pair, make_pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang")]

EXPERTS = "model.layers.1.mlp.experts"
UP = f"{EXPERTS}.2.up_proj.weight"


@pytest.fixture(scope="module")
def pair(models: Path) -> Pair:
    return make_pair("sglang", str(_mixture(models)), models, "none")


def test_every_expert_is_read_and_probed(pair: Pair) -> None:
    verdicts = pair.sync(poison=0xA5)
    assert {v.check: v.message for v in verdicts.values() if v.counts and v.status != "pass"} == {}
    assert verdicts["weight-bytes"].coverage.layers_checked == len(pair.learner.layers())
    assert verdicts["exact-probe"].coverage.complete
    pair.learner.step(1e-6)
    assert pair.judge(poison=0x5A) == {}
    assert pair.judge(same_weights=True) == {}


def test_one_bit_of_one_expert_is_found_by_name(pair: Pair) -> None:
    assert pair.judge() == {}
    held = pair.model.get_submodule(EXPERTS).w13_weight.data[2]
    row = held.shape[0] // 2 + 3  # up comes after gate
    held[row, 7:8] = (held[row, 7:8].view(torch.int16) ^ 1).view(held.dtype)
    prints, probe = pair.engine.weight_prints(), pair.engine.probe_exact()
    expected = pair.learner.prints()
    wrong = {
        name: (held.rows["values"] != expected[name].rows["values"]).nonzero()[0].tolist()
        for name, held in prints.items()
        if (held.rows["values"] != expected[name].rows["values"]).any()
    }
    assert wrong == {UP: [3]}
    values = pair.learner.value_prints()
    assert {n for n, p in probe.items() if (p.rows["values"] != values[n]).any()} == {UP}
    assert pair.judge() == {}


def test_a_method_that_serves_other_matrices_is_not_probed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_doubled(pair.model.get_submodule(EXPERTS).quant_method, monkeypatch)
    held: Any = pair.engine.probe_exact()[UP]
    assert "not of the parameters as they are" in held.why


def test_a_router_that_is_a_module_of_its_own_is_read_and_probed(models: Path) -> None:
    """GLM's, beside experts, a shared one, and a dense first layer."""
    glm = make_pair("sglang", "tiny-glm4-moe", models, "none")
    verdicts = glm.sync(poison=0xA5)
    assert {v.check: v.message for v in verdicts.values() if v.counts and v.status != "pass"} == {}
    assert verdicts["exact-probe"].coverage.complete
    router = "model.layers.1.mlp.gate"
    table = {layer.module: layer for layer in glm.engine.layers()}
    assert (table[router].method, table[router].grid) == ("Glm4MoeGate", "fp32")
    glm.model.get_submodule(router).weight.data[2, 5] *= 2
    found = {v.check: v for v in glm.guard.judge() if v.status is Status.FAIL}
    for check in ("weight-bytes", "exact-probe"):
        assert list(dict(found[check].evidence)) == [f"{router}.weight"]
    assert glm.judge() == {}
    bias = glm.model.get_submodule(router).e_score_correction_bias
    bias.data[1] += 1
    found = {v.check: v for v in glm.guard.judge() if v.status is Status.FAIL}
    assert list(dict(found["weight-bytes"].evidence)) == [f"{router}.e_score_correction_bias"]


def test_dense_layers_of_a_mixture_are_lost(models: Path) -> None:
    """A fault of SGLang, with nothing injected: see docs/findings."""
    pair = make_pair("sglang", str(_mixture(models, dense=[0])), models, "none")
    verdicts = pair.sync(poison=0xA5)
    assert verdicts["session"].status is Status.PASS
    fates = dict(verdicts["ledger"].evidence)
    dense = {f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    assert {n for n, fate in fates.items() if fate == "arrived, but no loader took it"} == dense
    assert verdicts["layer-set"].status is Status.FAIL
    assert dense <= {name for name, _ in verdicts["layer-set"].evidence}


def _mixture(folder: Path, dense: list[int] | None = None) -> Path:
    from syncguard._libraries import import_transformers, quiet

    transformers = import_transformers()
    config = transformers.Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        initializer_range=0.1,
        mlp_only_layers=dense or [],
    )
    path = folder / f"tiny-mixture-{len(dense or [])}"
    with quiet():
        transformers.AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(path)
    return path
