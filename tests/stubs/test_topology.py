"""Topologies are checked once, and name what does not fit."""

from typing import Any

import pytest

from syncguard.errors import UsageError
from syncguard.stubs import Topology
from syncguard.stubs.topology import CHOICES, weight_specs
from syncguard.stubs.weights import initial_weights


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"layers": 0}, "layers must be at least 1"),
        ({"hidden": 48}, "hidden must be a multiple of 32"),
        ({"experts": -1}, "counts must not be negative"),
        ({"head_dim": 33}, "head_dim must be even"),
        ({"ranks": 3}, "each rank must hold whole heads and a multiple of 32 of their columns"),
        ({"heads": 3, "kv_heads": 2}, "heads must be a multiple of kv_heads"),
        ({"ranks": 2, "heads": 6, "kv_heads": 3}, "of kv_heads and ranks one must be a multiple"),
        ({"vocab": 1, "ranks": 2}, "every rank needs a part of the vocabulary"),
        ({"experts": 1}, "top_k must not exceed experts"),
        ({"experts": 2, "ranks": 4, "heads": 4, "kv_heads": 4}, "every rank needs an expert"),
        (
            {"experts": 2, "ranks": 2, "expert_intermediate": 32, "shared_expert": True},
            "every rank needs a part of each expert that ranks share",
        ),
        ({"linear_kernel": "swizled"}, "did you mean 'swizzled'"),
        ({"quantization": "fp4"}, "quantization 'fp4' is not one of 'mxfp8', 'none'"),
    ],
)
def test_what_does_not_fit(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Topology(**settings)
    assert text in str(caught.value)


def test_shown_as_the_call_that_makes_it() -> None:
    topology = Topology(layers=3, tied=True, attention="mla")
    assert str(topology) == "Topology(layers=3, tied=True, attention='mla')"
    assert eval(str(topology), {"Topology": Topology}) == topology  # noqa: S307


def test_defaults_are_choices() -> None:
    assert all(getattr(Topology(), name) in known for name, known in CHOICES.items())


def test_specs_name_everything_once() -> None:
    topology = Topology(
        experts=3, dense_layers=1, shared_expert=True, bias=True, sinks=True, kv_scales=True,
        draft="synced",
    )  # fmt: skip
    specs = weight_specs(topology)
    names = [spec.name for spec in specs]
    assert len(names) == len(set(names))
    assert {spec.kind for spec in specs} == {
        "bias", "buffer", "embedding", "expert", "head", "linear", "norm", "router",
    }  # fmt: skip
    assert "model.layers.0.mlp.gate_proj.weight" in names
    assert "model.layers.1.mlp.experts.2.down_proj.weight" in names
    assert "model.layers.1.mlp.shared_experts.up_proj.weight" in names
    assert "lm_head.weight" not in {spec.name for spec in weight_specs(Topology(tied=True))}
    assert not any("mtp" in spec.name for spec in weight_specs(Topology(draft="frozen")))


def test_correction_biases_lie_where_bf16_cannot_tell_them_apart() -> None:
    weights = initial_weights(Topology(experts=8), seed=0)
    bias = weights["model.layers.0.mlp.gate.e_score_correction_bias"]
    assert len(set(bias.tolist())) == 8
    assert len(set(bias.bfloat16().tolist())) < 8
