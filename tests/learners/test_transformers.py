import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from syncguard._libraries import import_torchao, import_transformers
from syncguard.errors import UsageError
from syncguard.fingerprint import row_prints, value_print
from syncguard.grids import dequantize, quantize
from syncguard.learners import TransformersLearner
from syncguard.learners.transformers import LOGPROB_MODES
from syncguard.models import resolve_model

from .conftest import Make

if TYPE_CHECKING:
    from syncguard.protocols import Learner

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts products of block-scaled operands."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += str(func) == "aten.mm.default" and all(hasattr(arg, "qdata") for arg in args)
        return func(*args, **(kwargs or {}))


def sequences(lengths: tuple[int, ...] = (24, 24, 9)) -> list[list[int]]:
    generator = np.random.default_rng(11)
    return [generator.integers(0, 512, length).tolist() for length in lengths]


def octets(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def print_bytes(learner: TransformersLearner) -> dict[str, bytes]:
    return {
        name: b"".join(rows.tobytes() for rows in found.rows.values())
        for name, found in learner.prints().items()
    }


def spread(one: list[NDArray[np.float64]], other: list[NDArray[np.float64]]) -> float:
    return float(np.std(np.concatenate(one) - np.concatenate(other)))


def test_it_is_a_learner(make: Make) -> None:
    learner: Learner = make()
    environment = learner.environment()
    assert environment["architecture"] == "Qwen3ForCausalLM"
    assert environment["quantization"] == "mxfp8"
    assert {"torch", "torchao", "transformers"} <= environment.keys()


def test_layers_tell_what_ran_in_low_precision(make: Make) -> None:
    layers = make().layers()
    assert [layer.weight for layer in layers if layer.grid == "mxfp8"] == [
        f"model.layers.{number}.{part}_proj.weight"
        for number in range(2)
        for part in (
            *(f"self_attn.{name}" for name in "qkvo"),
            *(f"mlp.{name}" for name in ("gate", "up", "down")),
        )
    ]
    assert {layer.kind for layer in layers if layer.grid == "mxfp8"} == {"linear"}
    assert {layer.kind for layer in layers if layer.grid == "bf16"} == {"embedding", "head", "norm"}
    assert {layer.grid for layer in layers} == {"mxfp8", "bf16"}


def test_layers_of_a_plain_learner_are_plain(make: Make) -> None:
    assert {layer.grid for layer in make(quantization="none").layers()} == {"bf16"}


def test_layers_report_a_head_that_ran_in_low_precision(make: Make) -> None:
    # The filter left it alone; only the forward tells.
    learner = make()
    quantize_, recipe = import_torchao()
    quantize_(learner._model, recipe, filter_fn=lambda _, name: name == "lm_head")
    learner._parameters = dict(learner._model.named_parameters())
    assert {layer.weight: layer.grid for layer in learner.layers()}[HEAD] == "mxfp8"


def test_layers_report_a_layer_that_did_not_run_in_low_precision(make: Make) -> None:
    learner = make()
    layer = learner._model.get_submodule(QUERY.removesuffix(".weight"))
    layer.forward = lambda row: row @ layer.weight._data.t()
    assert {layer.weight: layer.grid for layer in learner.layers()}[QUERY] == "bf16"


@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-qwen3-tied"])
def test_layers_are_all_of_the_checkpoint_with_its_shapes(make: Make, model: str) -> None:
    learner = make(model)
    stored = learner.checkpoint.tensors
    layers = {layer.weight: layer for layer in learner.layers()}
    untied = {name for name, layer in layers.items() if not layer.tied_to}
    assert untied == set(stored)
    assert all(layers[name].shape == entry.shape for name, entry in stored.items())


def test_tied_head_is_listed_but_not_sent_twice(make: Make) -> None:
    learner = make("tiny-qwen3-tied")
    layers = {layer.weight: layer for layer in learner.layers()}
    assert (layers[HEAD].kind, layers[HEAD].tied_to) == ("head", EMBEDDING)
    sent = [name for name, _ in learner.weights()]
    assert HEAD not in sent
    assert sent.count(EMBEDDING) == 1
    assert torch.equal(learner.dequantized(HEAD), learner.dequantized(EMBEDDING))
    assert {HEAD, EMBEDDING} <= learner.prints().keys()


@pytest.mark.parametrize("quantization", ["mxfp8", "none"])
def test_weights_are_the_checkpoint(make: Make, quantization: str) -> None:
    learner = make(quantization=quantization)
    stored = load_file(learner.checkpoint.path / "model.safetensors")
    sent = dict(learner.weights())
    assert sent.keys() == stored.keys()
    assert all(type(tensor) is torch.Tensor for tensor in sent.values())
    assert all(torch.equal(sent[name], tensor) for name, tensor in stored.items())


def test_weights_are_copies(make: Make) -> None:
    learner = make()
    sent = dict(learner.weights())
    before = sent[QUERY].clone()
    learner.step(1e-2)
    assert torch.equal(sent[QUERY], before)
    assert not torch.equal(dict(learner.weights())[QUERY], before)


def test_serialized_wire_carries_the_forward_grid(make: Make) -> None:
    learner = make(wire="mxfp8")
    sent = dict(learner.weights())
    names = [name for layer in learner.layers() for name in learner.wire_names(layer.weight)]
    assert names == list(sent)
    low = [layer.weight for layer in learner.layers() if layer.grid == "mxfp8"]
    assert len(low) == 14
    for name in low:
        grid = learner.grid_tensors(name)
        assert torch.equal(octets(sent[name]), octets(grid["elements"]))
        assert torch.equal(sent[f"{name}_scale"], grid["scales"])
    assert len(sent) == len(learner.layers()) + len(low)


def test_grid_is_the_reference_quantization_of_every_layer(make: Make) -> None:
    learner = make()
    weights = dict(learner.weights())
    low = [layer.weight for layer in learner.layers() if layer.grid == "mxfp8"]
    assert len(low) == 14
    for name in low:
        grid = learner.grid_tensors(name)
        elements, scales = quantize(weights[name])
        assert (grid["elements"].dtype, grid["scales"].dtype) == (torch.float8_e4m3fn, torch.uint8)
        assert torch.equal(octets(grid["elements"]), octets(elements))
        assert torch.equal(grid["scales"], scales)
        assert torch.equal(learner.dequantized(name), dequantize(elements, scales))


def test_grid_of_a_plain_weight_is_its_values(make: Make) -> None:
    learner = make()
    assert list(learner.grid_tensors(HEAD)) == ["values"]
    assert torch.equal(learner.grid_tensors(HEAD)["values"], dict(learner.weights())[HEAD])


def test_unknown_weight_is_a_key_error(make: Make) -> None:
    learner = make()
    for ask in (learner.grid_tensors, learner.dequantized):
        with pytest.raises(KeyError, match="absent"):
            ask("absent")


def test_prints_are_those_of_the_grid(make: Make) -> None:
    learner = make()
    prints, values = learner.prints(), learner.value_prints()
    assert prints.keys() == {layer.weight for layer in learner.layers()}
    elements, scales = quantize(dict(learner.weights())[QUERY])
    found = prints[QUERY]
    assert (found.grid, found.shape, found.nbytes) == ("mxfp8", (128, 128), 128 * (128 + 4))
    np.testing.assert_array_equal(found.rows["elements"], row_prints(elements))
    np.testing.assert_array_equal(found.rows["scales"], row_prints(scales, granule=1))
    np.testing.assert_array_equal(values[QUERY], value_print(dequantize(elements, scales)))
    assert list(prints["model.norm.weight"].rows) == ["values"]
    assert "model.norm.weight" not in values


def test_model_mode_is_transformers_itself(make: Make) -> None:
    learner = make()
    model = import_transformers().AutoModelForCausalLM.from_pretrained(
        learner.checkpoint.path, dtype=torch.bfloat16
    )
    for sequence in sequences():
        tokens = torch.tensor([sequence])
        with torch.no_grad():
            logprobs = model(tokens).logits[0, :-1].double().log_softmax(-1)
        expected = logprobs.gather(-1, tokens[0, 1:, None])[:, 0]
        (scores,) = learner.logprobs([sequence], mode="model")
        np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-12)


def test_float32_mode_is_a_float32_model_of_the_dequantized_weights(make: Make) -> None:
    learner = make()
    model = import_transformers().AutoModelForCausalLM.from_pretrained(
        learner.checkpoint.path, dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(learner.dequantized(name))
    (sequence,) = sequences((24,))
    with torch.no_grad():
        logprobs = model(torch.tensor([sequence])).logits[0, :-1].double().log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(sequence)[1:, None])[:, 0]
    (scores,) = learner.logprobs([sequence], mode="float32")
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-4)


def test_modes_differ_by_what_they_round(make: Make) -> None:
    learner = make()
    found = {mode: learner.logprobs(sequences(), mode=mode) for mode in LOGPROB_MODES}
    assert [row.shape for row in found["forward"]] == [(23,), (23,), (8,)]
    rounding = spread(found["dequantized"], found["float32"])
    # Rounding of weights, and of activations, is far coarser than bf16.
    assert 0 < 2 * rounding < spread(found["model"], found["float32"])
    assert 0 < 2 * rounding < spread(found["forward"], found["float32"])


def test_modes_of_a_plain_learner_agree(make: Make) -> None:
    learner = make(quantization="none")
    found = {mode: learner.logprobs(sequences(), mode=mode) for mode in LOGPROB_MODES}
    assert spread(found["forward"], found["model"]) == 0
    assert spread(found["forward"], found["dequantized"]) == 0
    assert spread(found["forward"], found["float32"]) > 0


def test_the_policy_at_its_own_temperature_is_the_policy(make: Make) -> None:
    learner = make()
    own, warm = (
        [scores[:, column] for scores in learner.tempered(sequences(), (1.0, 2.0))]
        for column in (0, 1)
    )
    assert [row.shape for row in own] == [(23,), (23,), (8,)]
    assert spread(own, learner.logprobs(sequences())) < 1e-5
    assert spread(warm, own) > 0.1


def test_scoring_leaves_the_learner_as_it_was(make: Make) -> None:
    learner = make("tiny-qwen3-tied")
    before = learner.logprobs(sequences())
    for mode in LOGPROB_MODES:
        learner.logprobs(sequences(), mode=mode)
    assert spread(before, learner.logprobs(sequences())) == 0
    assert {layer.grid for layer in learner.layers() if layer.kind == "linear"} == {"mxfp8"}


def test_policy_is_far_from_uniform_and_from_certain(make: Make) -> None:
    learner = make()
    tokens = torch.tensor(sequences((64,)))
    with torch.no_grad():
        logprobs = learner._forward(tokens).double().log_softmax(-1)
    entropy = float(-(logprobs.exp() * logprobs).sum(-1).mean())
    assert 3 < entropy < 5  # of log 512 = 6.2


def test_unknown_mode_is_named(make: Make) -> None:
    with pytest.raises(ValueError, match=r"expected one of forward, dequantized, .* got 'int4'"):
        make().logprobs(sequences(), mode="int4")


@pytest.mark.parametrize("quantization", ["mxfp8", "none"])
def test_small_step_changes_some_weights(make: Make, quantization: str) -> None:
    learner = make(quantization=quantization)
    before = {name: tensor.clone() for name, tensor in learner.weights()}
    old = print_bytes(learner)
    report = learner.step(1e-6)
    after = dict(learner.weights())
    changed = sum(int((before[name] != after[name]).sum()) for name in before)
    total = sum(tensor.numel() for tensor in before.values())
    assert report.learning_rate == 1e-6
    assert report.weights_changed == pytest.approx(changed / total)
    assert 1e-3 < report.weights_changed < 0.1
    assert np.isfinite(report.loss)
    assert (0 < report.elements_changed < 0.01) is (quantization == "mxfp8")
    assert print_bytes(learner) != old


def test_step_report_counts_bytes_of_the_grid(make: Make) -> None:
    learner = make()
    low = [layer.weight for layer in learner.layers() if layer.grid == "mxfp8"]
    before = {name: learner.grid_tensors(name) for name in low}
    report = learner.step(1e-3)
    for component, share in (
        ("elements", report.elements_changed),
        ("scales", report.scales_changed),
    ):
        pairs = [(before[name][component], learner.grid_tensors(name)[component]) for name in low]
        changed = sum(int((octets(old) != octets(new)).sum()) for old, new in pairs)
        assert share == changed / sum(old.numel() for old, _ in pairs)
        assert share > 0


def test_step_of_nothing_changes_nothing(make: Make) -> None:
    learner = make()
    old = print_bytes(learner)
    report = learner.step(0.0)
    assert (report.weights_changed, report.elements_changed, report.scales_changed) == (0, 0, 0)
    assert print_bytes(learner) == old


def test_every_weight_learns(make: Make) -> None:
    learner = make("tiny-qwen3-tied")
    old = print_bytes(learner)
    learner.step(0.1)
    new = print_bytes(learner)
    assert [name for name in old if old[name] == new[name]] == []


def test_backward_runs_in_low_precision_too(make: Make) -> None:
    learner = make()
    learner.layers()
    with Products() as products:  # type: ignore[no-untyped-call]
        learner.step(1e-4)
    # 14 layers: a forward, the two products of its backward, and the forward that observes.
    assert products.count == 14 * 4


def test_equal_seeds_train_equally(make: Make) -> None:
    def trained(seed: int) -> dict[str, bytes]:
        learner = make(seed=seed)
        torch.manual_seed(0)
        learner.step(1e-3)
        learner.step(1e-3)
        return print_bytes(learner)

    assert trained(1) == trained(1)
    assert trained(1) != trained(2)


def test_grid_follows_the_weights(make: Make) -> None:
    learner = make()
    learner.layers()
    learner.step(1e-2)
    elements, scales = quantize(dict(learner.weights())[QUERY])
    assert torch.equal(octets(learner.grid_tensors(QUERY)["elements"]), octets(elements))
    assert torch.equal(learner.grid_tensors(QUERY)["scales"], scales)


def test_perturbation_reaches_every_weight(make: Make) -> None:
    learner, twin = make(), make()
    old = print_bytes(learner)
    learner.perturb(3, 0.1)
    new = print_bytes(learner)
    assert [name for name in old if old[name] == new[name]] == []
    twin.perturb(3, 0.1)
    assert print_bytes(twin) == new


def test_noise_of_libraries_is_not_shown(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = resolve_model("tiny-qwen3", cache).path
    TransformersLearner(path, quantization="mxfp8").step(1e-6)
    assert capfd.readouterr() == ("", "")


def copied(learner: TransformersLearner, folder: Path, **settings: object) -> Path:
    shutil.copytree(learner.checkpoint.path, folder)
    config = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def rewrite(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_checkpoint_that_lacks_a_weight_is_refused(make: Make, tmp_path: Path) -> None:
    folder = copied(make(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    rewrite(folder, {name: tensor for name, tensor in weights.items() if name != QUERY})
    text = rf"1 weights are not in the checkpoint \(first '{QUERY}'\), 0 of its tensors are not"
    with pytest.raises(UsageError, match=text):
        TransformersLearner(folder)


def test_checkpoint_with_a_strange_weight_is_refused(make: Make, tmp_path: Path) -> None:
    folder = copied(make(), tmp_path / "model")
    rewrite(folder, load_file(folder / "model.safetensors") | {"strange": torch.zeros(2)})
    with pytest.raises(UsageError, match=r"1 of its tensors are not in the model \(first 'strange"):
        TransformersLearner(folder)


def test_other_architecture_is_refused(make: Make, tmp_path: Path) -> None:
    folder = copied(make(), tmp_path / "model", architectures=["Qwen3Model"])
    with pytest.raises(UsageError, match=r"names architecture 'Qwen3Model', of which .* makes a"):
        TransformersLearner(folder)


def test_model_that_transformers_cannot_load_is_refused(make: Make, tmp_path: Path) -> None:
    folder = copied(make(), tmp_path / "model", model_type="no-such-model")
    with pytest.raises(UsageError, match=r"cannot load it as a causal language model: .*no-such"):
        TransformersLearner(folder)


def test_bias_is_refused_for_mxfp8_only(make: Make, tmp_path: Path) -> None:
    folder = copied(make(), tmp_path / "model", attention_bias=True)
    weights = load_file(folder / "model.safetensors")
    biases = {
        name.replace(".weight", ".bias"): torch.ones(tensor.shape[0], dtype=torch.bfloat16)
        for name, tensor in weights.items()
        if "self_attn" in name and "_proj" in name
    }
    rewrite(folder, weights | biases)
    kinds = {layer.weight: layer.kind for layer in TransformersLearner(folder).layers()}
    assert kinds["model.layers.0.self_attn.q_proj.bias"] == "bias"
    with pytest.raises(UsageError, match=r"q_proj' \(one of 8\) has a bias, which torchao's MXFP8"):
        TransformersLearner(folder, quantization="mxfp8")


def test_torchao_still_drops_biases() -> None:
    # When this fails, biased layers need no longer be refused.
    layer = nn.Linear(32, 32, dtype=torch.bfloat16)
    quantize_, recipe = import_torchao()
    row = torch.randn(1, 32).bfloat16()
    with torch.no_grad():
        layer.bias.fill_(100)
        quantize_(layer, recipe, filter_fn=lambda *_: True)
        assert float(layer(row).abs().max()) < 50
