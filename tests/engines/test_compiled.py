"""What compiled code is handed and what it holds are told apart."""

import types
from typing import Any

import pytest
import torch

from syncguard.engines.compiled import Folded, tensors_of_compiled_graphs

ADDRESS = 94_383_258_647_696


def graph(constants: dict[str, Any] | None, held: dict[str, Any]) -> Any:
    """Compiled code with constants of its own, and weights in its module."""
    code = types.FunctionType((lambda: None).__code__, held)
    return types.SimpleNamespace(
        constants=constants, frozen_param_names=dict.fromkeys(held), current_callable=code
    )


def told(compiled: Any, inputs: list[Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    from torch._inductor.output_code import CompiledFxGraph

    def run(self: Any, given: Any) -> str:
        return "ran"

    monkeypatch.setattr(CompiledFxGraph, "__call__", run)
    handed: list[torch.Tensor] = []
    folded: list[torch.Tensor] = []
    with tensors_of_compiled_graphs(handed.append, folded.append):
        assert CompiledFxGraph.__call__(compiled, inputs) == "ran"
    assert CompiledFxGraph.__call__ is run
    CompiledFxGraph.__call__(compiled, inputs)  # of which nothing is told
    return handed, folded


def test_inputs_and_constants_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, number = torch.ones(2), torch.ones(3), torch.tensor(5)
    compiled = graph({"c0": number, "c1": str}, {"_frozen_param0": weight})
    handed, folded = told(compiled, [x, 7], monkeypatch)
    assert [id(one) for one in handed] == [id(x)]
    assert [id(one) for one in folded] == [id(number), id(weight)]


def test_code_without_constants_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(graph(None, {}), [torch.ones(1)], monkeypatch)[1] == []


class Model(torch.nn.Module):
    """One weight, and the addresses of two native objects, one of which a closure holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.other = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.small = torch.tensor(5)
        self.spare = torch.tensor(ADDRESS + 64)
        handler = torch.tensor(ADDRESS)
        self.product = lambda x: x * handler


def paths(*constants: torch.Tensor, model: Model) -> frozenset[str]:
    folded = Folded()
    for constant in constants:
        folded.note(constant)
    return folded.paths(model, ())


def test_a_weight_that_is_held_is_found_by_its_place() -> None:
    model = Model()
    assert paths(model.weight[1:], model=model) == {"weight"}
    assert paths(model.weight.clone(), model=model) == frozenset()


def test_a_copied_address_is_found_by_its_number() -> None:
    model = Model()
    assert paths(torch.tensor(ADDRESS), model=model) == {"product<handler>"}


def test_other_numbers_are_no_addresses() -> None:
    model = Model()
    assert paths(torch.tensor(5), torch.tensor([ADDRESS, 1]), model=model) == frozenset()
    assert paths(torch.tensor(float(ADDRESS)), model=model) == frozenset()


def test_nothing_is_walked_for_nothing() -> None:
    assert paths(model=Model()) == frozenset()
