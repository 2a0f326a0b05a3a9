"""The stub learner computes on its grid, trains float32 masters and tells what it did."""

import numpy as np
import pytest
import torch

from syncguard.fingerprint import row_prints
from syncguard.grids import dequantize, quantize
from syncguard.stubs import Topology, make_stub_learner
from syncguard.stubs.learner import LOGPROB_MODES

_TOKENS = [[1, 2, 3, 4, 5, 6], [3, 1]]
_Q = "model.layers.0.self_attn.q_proj.weight"
_RICH = Topology(
    layers=1, experts=4, shared_expert=True, tied=True, bias=True, sinks=True, kv_scales=True,
    draft="synced",
)  # fmt: skip


def test_same_seed_same_learner() -> None:
    one, other, third = (make_stub_learner(seed=seed) for seed in (1, 1, 2))
    for learner in (one, other, third):
        learner.step(1e-3)
    assert one.state() == other.state()
    assert not one.state().items() & third.state().items()


def test_layers_tell_grids_and_ties() -> None:
    rows = {row.weight: row for row in make_stub_learner(_RICH).layers()}
    assert rows[_Q].grid == "mxfp8"
    assert rows["mtp.fc.weight"].grid == "mxfp8"
    assert rows["model.layers.0.mlp.experts.3.up_proj.weight"].kind == "expert"
    assert rows["model.layers.0.mlp.gate.weight"].grid == "bf16"
    bias = rows["model.layers.0.mlp.gate.e_score_correction_bias"]
    assert (bias.kind, bias.grid) == ("buffer", "fp32")
    assert rows["lm_head.weight"].tied_to == "model.embed_tokens.weight"
    sent = [name for name, _ in make_stub_learner(_RICH).weights()]
    assert sent == [name for name in rows if not rows[name].tied_to]


def test_grid_is_that_of_the_weights() -> None:
    learner = make_stub_learner()
    weight = dict(learner.weights())[_Q]
    elements, scales = quantize(weight)
    grid = learner.grid_tensors(_Q)
    assert torch.equal(grid["elements"].view(torch.uint8), elements.view(torch.uint8))
    assert torch.equal(grid["scales"], scales)
    assert torch.equal(learner.dequantized(_Q), dequantize(elements, scales))
    assert list(learner.grid_tensors("model.norm.weight")) == ["values"]
    with pytest.raises(KeyError):
        learner.grid_tensors("model.layers.7.self_attn.q_proj.weight")


def test_prints_are_those_of_the_grid() -> None:
    learner = make_stub_learner(_RICH)
    prints = learner.prints()
    assert prints.keys() == {row.weight for row in learner.layers()}
    grid = learner.grid_tensors(_Q)
    np.testing.assert_array_equal(prints[_Q].rows["elements"], row_prints(grid["elements"]))
    assert prints[_Q].nbytes == sum(tensor.nbytes for tensor in grid.values())
    assert prints["lm_head.weight"].shape == prints["model.embed_tokens.weight"].shape
    assert "model.norm.weight" not in learner.value_prints()


def test_modes_differ_as_their_rounding_does() -> None:
    learner = make_stub_learner(_RICH)
    scores = {mode: np.concatenate(learner.logprobs(_TOKENS, mode=mode)) for mode in LOGPROB_MODES}
    gaps = {m: np.abs(values - scores["float32"]).mean() for m, values in scores.items()}
    assert 0 < gaps["dequantized"] < gaps["forward"]
    assert gaps["dequantized"] < gaps["model"]
    with pytest.raises(ValueError, match=r"mode: expected one of forward, .*, got 'fast'"):
        learner.logprobs(_TOKENS, mode="fast")


def test_the_policy_at_its_own_temperature_is_the_policy() -> None:
    learner = make_stub_learner(Topology(), seed=0)
    own = learner.tempered(_TOKENS, (1.0,))
    for scores, expected in zip(own, learner.logprobs(_TOKENS), strict=True):
        np.testing.assert_allclose(scores[:, 0], expected, atol=1e-5)


def test_logprobs_are_normalized() -> None:
    learner = make_stub_learner(Topology(layers=1, vocab=9))
    scores = learner.logprobs([[4, token] for token in range(9)])
    assert np.exp(scores).sum() == pytest.approx(1)


@pytest.mark.parametrize("topology", [Topology(), _RICH, Topology(attention="mla")])
def test_small_step_changes_a_few_weights(topology: Topology) -> None:
    learner = make_stub_learner(topology)
    report = learner.step(1e-6)
    assert 1e-3 < report.weights_changed < 0.05
    assert 0 < report.elements_changed < 0.01
    assert np.isfinite(report.loss)


def test_step_lowers_the_loss_and_moves_every_kind() -> None:
    learner = make_stub_learner(_RICH)
    before = {name: tensor.clone() for name, tensor in learner.weights()}
    learner.step(1e-2)
    still = [name for name, tensor in learner.weights() if torch.equal(before[name], tensor)]
    assert not still
    sharp = make_stub_learner(Topology(layers=1), seed=4)
    one = sharp.step(1e-2).loss
    sharp._steps = 0  # the same batch again
    assert sharp.step(0.0).loss < one


def test_master_rounds_to_the_weight() -> None:
    learner = make_stub_learner()
    weight, master = dict(learner.weights())[_Q], learner.master(_Q)
    assert master.dtype == torch.float32
    assert torch.equal(master.bfloat16(), weight)
    assert not torch.equal(master, weight.float())


def test_change_of_weights_changes_the_grid() -> None:
    learner = make_stub_learner()
    before = learner.grid_tensors(_Q)["elements"].clone()
    dict(learner.weights())[_Q].mul_(1.5)
    after = learner.grid_tensors(_Q)["elements"]
    assert not torch.equal(before.view(torch.uint8), after.view(torch.uint8))


def test_seams_of_the_learner_take_effect_at_once() -> None:
    learner = make_stub_learner()
    before = learner.prints()[_Q].rows["elements"].copy()
    seams = learner.seams()
    with seams["quantizer"]["learner"].wrap(
        lambda original: lambda name, weight: quantize(learner.master(name))
    ):
        assert (learner.prints()[_Q].rows["elements"] != before).any()
    with seams["exclusion"]["learner"].wrap(lambda original: lambda module: True):
        assert {row.grid for row in learner.layers()} == {"bf16"}
    np.testing.assert_array_equal(learner.prints()[_Q].rows["elements"], before)
    with seams["init"]["learner"].wrap(
        lambda original: lambda tensors: {n: t * 0 for n, t in original(tensors).items()}
    ):
        learner.restart()
    assert not dict(learner.weights())[_Q].any()
    assert learner.checkpoint()[_Q].any()


def test_wire_of_elements_and_scales() -> None:
    learner = make_stub_learner(Topology(layers=1, wire="mxfp8"))
    sent = dict(learner.weights())
    assert sent[_Q].dtype == torch.float8_e4m3fn
    assert torch.equal(sent[f"{_Q}_scale"], learner.grid_tensors(_Q)["scales"])
    assert "model.norm.weight_scale" not in sent
    names = [name for row in learner.layers() for name in learner.wire_names(row.weight)]
    assert names == list(sent)


def test_tied_head_does_not_travel() -> None:
    learner = make_stub_learner(Topology(layers=1, tied=True))
    assert learner.wire_names("lm_head.weight") == ()
    assert learner.wire_names(_Q) == (_Q,)


def test_given_weights_are_copied() -> None:
    from syncguard.stubs import StubLearner

    given = {name: tensor.clone() for name, tensor in make_stub_learner(seed=3).weights()}
    learner = StubLearner(Topology(), seed=1, weights=given)
    learner.perturb(0.1)
    assert torch.equal(given[_Q], make_stub_learner(seed=3).checkpoint()[_Q])
    assert torch.equal(learner.checkpoint()[_Q], given[_Q])
