"""Training in bf16 and rolling out in INT8: what the learner wants served."""

import numpy as np
import pytest
import torch
from torch import nn

from syncguard.checkpoints import QUANTIZATIONS
from syncguard.errors import UsageError
from syncguard.fingerprint import row_prints, value_print
from syncguard.grids import from_grid, int8_product, to_grid, unit_columns
from syncguard.learners.recipes import RECIPES, rollout_in_int8
from tests.learners.conftest import Make

QUERY = "model.layers.0.self_attn.q_proj.weight"
HEAD = "lm_head.weight"
TOKENS = [[5, 6, 7, 8, 9, 10, 11, 12]]


def test_every_quantization_of_a_learner_has_a_recipe() -> None:
    assert sorted(RECIPES) == sorted(QUANTIZATIONS)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up = nn.Linear(64, 32, dtype=torch.bfloat16)
        self.gate = nn.Linear(64, 4, bias=False, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.up(x), self.gate(x)], dim=1)


def test_linear_layers_run_as_the_kernel_while_the_context_is_open() -> None:
    model, x = Two(), torch.randn(3, 64).to(torch.bfloat16)
    before = model(x)
    elements, scales = to_grid(model.up.weight, "int8")
    assert scales is not None
    with torch.no_grad(), rollout_in_int8(model) as used:
        assert not used
        rolled = model(x)
    assert used.keys() == {"up.weight"}  # a router is none of them
    assert torch.equal(used["up.weight"].elements, elements)
    assert torch.equal(rolled[:, :32], int8_product(x, elements, scales, model.up.bias))
    assert torch.equal(rolled[:, 32:], before[:, 32:])
    assert not torch.equal(rolled, before)
    assert torch.equal(model(x), before)


def test_layers_are_themselves_again_after_an_error() -> None:
    model = Two()
    with pytest.raises(RuntimeError), rollout_in_int8(model):
        model(torch.zeros(2, 3))
    assert "forward" not in vars(model.up)


def test_a_model_without_linear_layers_cannot_be_rolled_out() -> None:
    with pytest.raises(UsageError, match=r"'Embedding': it has no linear layer.*INT8.*'none'"):
        RECIPES["int8"].lower(nn.Embedding(3, 4))


def test_the_grid_is_the_quantization_of_what_is_trained(make: Make) -> None:
    learner = make(quantization="int8", wire="int8")
    low = [layer.weight for layer in learner.layers() if layer.grid == "int8"]
    assert len(low) == 14
    assert {layer.grid for layer in learner.layers()} == {"int8", "bf16"}
    plain = dict(make(quantization="none").weights())
    sent = dict(learner.weights())
    assert learner.wire_names(QUERY) == (QUERY, f"{QUERY}_scale")
    for name in low:
        elements, scales = to_grid(plain[name], "int8")
        assert scales is not None
        assert torch.equal(sent[name], elements)
        assert torch.equal(sent[f"{name}_scale"], scales)
        values = from_grid(elements, scales, "int8", torch.bfloat16)
        assert torch.equal(learner.dequantized(name), values)
    assert torch.equal(sent[HEAD], plain[HEAD])
    assert learner.quantize_canary() is None


def test_prints_are_of_elements_scales_and_unit_columns(make: Make) -> None:
    learner = make(quantization="int8", wire="int8")
    grid, found = learner.grid_tensors(QUERY), learner.prints()[QUERY]
    assert (found.grid, found.shape, found.nbytes) == ("int8", (128, 128), 128 * (128 + 4))
    np.testing.assert_array_equal(found.rows["elements"], row_prints(grid["elements"]))
    np.testing.assert_array_equal(found.rows["scales"], row_prints(grid["scales"], granule=1))
    columns = unit_columns(grid["elements"], grid["scales"], "int8").to(torch.bfloat16)
    values = learner.value_prints()
    np.testing.assert_array_equal(values[QUERY], value_print(columns))
    np.testing.assert_array_equal(values[HEAD], value_print(learner.dequantized(HEAD)))


def test_it_scores_with_the_rollout_and_trains_without(make: Make) -> None:
    learner, plain = make(quantization="int8"), make(quantization="none")
    modes = ("forward", "dequantized", "model")
    scores = {mode: learner.logprobs(TOKENS, mode=mode)[0] for mode in modes}
    np.testing.assert_array_equal(scores["model"], plain.logprobs(TOKENS)[0])
    assert len({scores[mode].tobytes() for mode in modes}) == 3
    assert learner.step(1e-6).loss == plain.step(1e-6).loss


def test_a_step_tells_what_it_changed_in_the_grid(make: Make) -> None:
    learner = make(quantization="int8")
    before = {name: dict(learner.grid_tensors(name)) for name in (QUERY,)}
    report = learner.step(1e-2)
    after = learner.grid_tensors(QUERY)
    assert not torch.equal(before[QUERY]["elements"], after["elements"])
    assert not torch.equal(before[QUERY]["scales"], after["scales"])
    assert 0 < report.elements_changed <= 1
    assert 0 < report.scales_changed <= 1


def test_the_environment_names_the_recipe(make: Make) -> None:
    told = make(quantization="int8").environment()
    assert told["quantization"] == "int8"
    assert told["recipe"].startswith("bf16 training, W8A8 rollout as compressed-tensors rounds")
    assert "torchao" not in told
    assert "recipe" not in make(quantization="none").environment()
