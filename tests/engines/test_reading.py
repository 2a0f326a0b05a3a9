"""What is read of modules whose kernels keep weights in a form of their own."""

from typing import Any

import numpy as np
import torch
from torch import nn

from syncguard.engines.held import Held, by_module, held_weights
from syncguard.engines.reading import Reader
from syncguard.fingerprint import row_prints, value_print
from syncguard.grids import int8_product, to_grid, unit_columns
from syncguard.observations import ProbeTurn, Unreadable, WeightPrint
from syncguard.probes import turn_rows

WHY = "its kernel packed them"


class Packed(nn.Module):
    """A fused INT8 layer whose kernel took the elements, and left scales and sums of elements."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
        self.elements, scales = to_grid(weight.to(torch.bfloat16), "int8")
        assert scales is not None
        self.register_parameter("weight", None)
        self.weight_scale = nn.Parameter(scales, requires_grad=False)
        self.azp_adj = nn.Parameter(torch.zeros(1, 48), requires_grad=False)
        self.register_parameter("bias", None)
        self.output_partition_sizes = [16, 32]
        self.input_size, self.params_dtype = 64, torch.bfloat16

    def serve(self, x: torch.Tensor) -> torch.Tensor:
        return int8_product(x, self.elements, self.weight_scale)


def held_in(module: nn.Module, why: str = WHY) -> list[Held]:
    fused = {"qk": ["q", "k"]}.get
    named = [("layer.qk", module)]
    return list(held_weights(named, fused, lambda *_: "linear", lambda _: why))


def reader(module: Packed) -> Reader:
    def serve(held: Held) -> Any:
        return held.module.serve

    return Reader(tuple(held_in(module)), "_scale", serve, lambda _: {}, lambda _: "int8")


def test_a_released_weight_is_held_and_its_scales_are_none_of_their_own() -> None:
    held = held_in(Packed())
    assert [(one.weight, one.packed) for one in held] == [
        ("layer.q.weight", WHY),
        ("layer.k.weight", WHY),
    ]
    assert list(by_module(held)) == ["layer.qk"]
    assert held_in(Packed(), why="") == []


def test_scales_are_read_and_elements_are_not() -> None:
    module = Packed()
    found = reader(module).weight_prints()["layer.k.weight"]
    assert isinstance(found, WeightPrint)
    assert (found.grid, found.shape, found.nbytes) == ("int8", (32, 64), 32 * 4)
    wanted = {"scales": row_prints(module.weight_scale[16:], granule=1)}
    assert found.rows.keys() == wanted.keys()
    np.testing.assert_array_equal(found.rows["scales"], wanted["scales"])
    rows = reader(module).fetch_rows("layer.k.weight", [3])
    assert {name: tensor.tolist() for name, tensor in rows.items()} == {
        "scales": module.weight_scale[19:20].tolist()
    }


def test_packed_elements_are_not_read_though_a_parameter_is_left() -> None:
    module = Packed()
    module.weight = nn.Parameter(module.elements.clone(), requires_grad=False)
    found = reader(module).weight_prints()["layer.q.weight"]
    assert isinstance(found, WeightPrint)
    assert set(found.rows) == {"scales"}


def test_without_scales_nothing_can_be_read_and_it_says_why() -> None:
    module = Packed()
    module.weight_scale = None  # type: ignore[assignment]
    assert reader(module).weight_prints()["layer.q.weight"] == Unreadable("layer.q.weight", WHY)
    assert reader(module).poison(0xA5) == {"layer.q.weight": 0, "layer.k.weight": 0}


def test_poison_fills_scales() -> None:
    module = Packed()
    assert reader(module).poison(0xA5) == {"layer.q.weight": 64, "layer.k.weight": 128}
    assert (module.weight_scale.view(torch.uint8) == 0xA5).all()


def test_the_exact_probe_asks_with_the_unit_of_the_grid() -> None:
    module = Packed()
    found = reader(module).probe_exact()["layer.k.weight"]
    assert isinstance(found, WeightPrint)
    columns = unit_columns(module.elements, module.weight_scale, "int8")[16:].to(torch.bfloat16)
    np.testing.assert_array_equal(found.rows["values"], value_print(columns))
    module.elements[18, 5] ^= 1
    changed = reader(module).probe_exact()["layer.k.weight"]
    assert isinstance(changed, WeightPrint)
    assert (changed.rows["values"] != found.rows["values"]).nonzero()[0].tolist() == [2]


def test_units_in_turn_are_asked_with_it_and_sums_are_not() -> None:
    module = Packed()
    for sums, unit in ((False, 127), (True, 1)):
        turn = ProbeTurn(sums, 4)
        (output,) = reader(module).probe_blocks({"layer.qk": turn})
        rows = turn_rows(turn, 64, torch.bfloat16) * unit
        np.testing.assert_array_equal(output.output, module.serve(rows).float().numpy())
