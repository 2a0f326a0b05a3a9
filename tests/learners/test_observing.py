import pytest
import torch
from torch import nn

from syncguard._libraries import import_torchao
from syncguard.errors import Unsupported
from syncguard.grids import quantize
from syncguard.learners.observing import watch


def linear(columns: int = 64) -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(columns, 48, bias=False, dtype=torch.bfloat16)


def lowered(layer: nn.Linear) -> nn.Linear:
    quantize_, recipe = import_torchao()
    quantize_(layer, recipe, filter_fn=lambda *_: True)
    return layer


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_low_precision_product_is_seen_with_its_operand() -> None:
    layer = linear()
    elements, scales = quantize(layer.weight.detach())
    lowered(layer)
    with torch.no_grad(), watch({"w": layer.weight}) as used:
        layer(torch.ones(3, 64, dtype=torch.bfloat16))
    assert used["w"].elements.shape == (48, 64)
    assert used["w"].scales.shape == (48, 2)
    assert same(used["w"].elements, elements)
    assert same(used["w"].scales, scales)


def test_plain_product_is_not() -> None:
    layer = linear()
    with torch.no_grad(), watch({"w": layer.weight}) as used:
        layer(torch.ones(3, 64, dtype=torch.bfloat16))
    assert not used


def test_wrapped_weight_that_is_used_as_it_is_is_not() -> None:
    # What decides is the product, not the type of the parameter.
    layer = lowered(linear())
    with torch.no_grad(), watch({"w": layer.weight}) as used:
        (layer.weight * 2).sum()
    assert not used


def test_operands_are_those_of_the_product_even_by_another_rule() -> None:
    from torchao.prototype.mx_formats.config import ScaleCalculationMode

    layer = linear()
    weight = layer.weight.detach().clone()
    quantize_, recipe = import_torchao()
    recipe.scale_calculation_mode = ScaleCalculationMode.FLOOR
    quantize_(layer, recipe, filter_fn=lambda *_: True)
    with torch.no_grad(), watch({"w": layer.weight}) as used:
        layer(torch.ones(3, 64, dtype=torch.bfloat16))
    assert same(used["w"].scales, quantize(weight, rule="floor")[1])
    assert not same(used["w"].scales, quantize(weight)[1])


def test_products_are_attributed_to_the_weight_of_their_call() -> None:
    layers = [lowered(linear()), lowered(linear()), linear()]
    with torch.no_grad():
        layers[1].weight.mul_(2)
    names = {str(number): layer.weight for number, layer in enumerate(layers)}
    with torch.no_grad(), watch(names) as used:
        for layer in layers:
            layer(torch.ones(3, 64, dtype=torch.bfloat16))
    assert sorted(used) == ["0", "1"]
    assert torch.equal(used["1"].scales, used["0"].scales + 1)


def test_watching_changes_no_output() -> None:
    layer, row = lowered(linear()), torch.randn(3, 64).bfloat16()
    with torch.no_grad():
        bare = layer(row)
        with watch({"w": layer.weight}):
            watched = layer(row)
    assert torch.equal(bare, watched)


def test_nothing_is_recorded_afterwards() -> None:
    layer = lowered(linear())
    with watch({"w": layer.weight}) as used:
        pass
    layer(torch.ones(3, 64, dtype=torch.bfloat16))
    assert not used


def test_other_block_formats_are_refused_by_name() -> None:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    row, weight = (MXTensor.to_mx(torch.randn(rows, 64), torch.float8_e5m2, 32) for rows in (1, 48))
    transposed = weight.t()
    with (
        torch.no_grad(),
        watch({"w": transposed}),
        pytest.raises(Unsupported, match=r"weight 'w': the forward used torch.float8_e5m2"),
    ):
        torch.mm(row, transposed)
