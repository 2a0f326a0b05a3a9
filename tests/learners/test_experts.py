import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from syncguard._libraries import import_transformers, quiet
from syncguard.errors import UsageError
from syncguard.learners import TransformersLearner
from syncguard.learners.experts import Experts, take_apart
from syncguard.models import resolve_model

from .conftest import Make

DENSE, SPARSE = "model.layers.0.mlp", "model.layers.1.mlp"
EXPERTS, PARTS = range(4), ("gate", "up", "down")


@pytest.fixture(scope="module")
def stacked(cache: Path) -> Any:
    transformers = import_transformers()
    path = resolve_model("tiny-qwen3-moe", cache).path
    with quiet():
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def test_taken_apart_experts_compute_the_same(stacked: Any) -> None:
    apart = copy.deepcopy(stacked)
    take_apart(apart)
    assert isinstance(apart.get_submodule(f"{SPARSE}.experts"), Experts)
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(apart(tokens).logits, stacked(tokens).logits)


def test_names_are_those_of_the_checkpoint(make: Make) -> None:
    learner = make("tiny-qwen3-moe")
    names = [layer.weight for layer in learner.layers()]
    assert sorted(names) == sorted(learner.checkpoint.tensors)


def test_each_expert_is_told_with_its_grid(make: Make) -> None:
    table = {layer.weight: layer for layer in make("tiny-qwen3-moe").layers()}
    for expert in EXPERTS:
        for part in PARTS:
            layer = table[f"{SPARSE}.experts.{expert}.{part}_proj.weight"]
            assert (layer.kind, layer.grid) == ("expert", "mxfp8")
    router = table[f"{SPARSE}.gate.weight"]
    assert (router.kind, router.grid) == ("router", "bf16")
    assert table[f"{DENSE}.gate_proj.weight"].kind == "linear"


def test_a_step_moves_routed_experts_and_forgets_none(make: Make) -> None:
    learner = make("tiny-qwen3-moe", "none")
    before = learner.state()
    learner.step(1e-2)
    after = learner.state()
    moved = {name for name in after if after[name] != before[name]}
    assert {f"{SPARSE}.gate.weight", f"{SPARSE}.experts.0.up_proj.weight"} <= moved
    assert after.keys() == before.keys()


def test_experts_under_other_names_are_refused(tmp_path: Path) -> None:
    transformers = import_transformers()
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        num_local_experts=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    with quiet():
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    text = r"in another way than the checkpoint \(first 'model.layers.0.mlp.experts.0.down_proj"
    with pytest.raises(UsageError, match=text):
        TransformersLearner(tmp_path)
