import torch
from torch import nn

from syncguard.learners.naming import kinds, low_precision_modules, ties


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.q_proj = nn.Linear(4, 4)
        self.convolution = nn.Conv1d(4, 4, 1, bias=False)
        self.gate = nn.Linear(4, 2, bias=False)
        self.experts = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])
        self.norm = nn.LayerNorm(4)
        self.lm_head = nn.Linear(4, 8, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(1))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mixture()

    def get_output_embeddings(self) -> nn.Module:
        return self.mlp.lm_head


def test_kind_of_each_parameter_and_persistent_buffer() -> None:
    assert kinds(Model()) == {
        "mlp.steps": "buffer",
        "mlp.embed.weight": "embedding",
        "mlp.q_proj.weight": "linear",
        "mlp.q_proj.bias": "bias",
        "mlp.convolution.weight": "linear",
        "mlp.gate.weight": "router",
        "mlp.experts.0.weight": "expert",
        "mlp.experts.1.weight": "expert",
        "mlp.norm.weight": "norm",
        "mlp.norm.bias": "bias",
        "mlp.lm_head.weight": "head",
    }


def test_kinds_come_in_the_order_of_the_state() -> None:
    model = Model()
    assert list(kinds(model)) == list(model.state_dict())


def test_low_precision_is_for_all_linear_layers_but_head_and_router() -> None:
    assert sorted(low_precision_modules(Model())) == [
        "mlp.experts.0",
        "mlp.experts.1",
        "mlp.q_proj",
    ]


def test_tied_weight_is_told_by_its_second_name() -> None:
    assert ties(Model()) == {"mlp.lm_head.weight": "mlp.embed.weight"}
    assert ties(nn.Linear(2, 2)) == {}
