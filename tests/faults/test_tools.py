"""What faults are made of: rewrites of an export, comparisons of bytes, other checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from syncguard.faults import FAULTS, World
from syncguard.faults.tools import (
    exported,
    folded_into,
    is_dry_run,
    matrices,
    replace_tensor,
    rewriting,
    same_bytes,
    sent,
    started_from,
)
from tests.faults.helpers import make_world


@pytest.fixture(name="world")
def _world() -> World:
    return make_world(FAULTS["sent-twice"])


def test_sites_of_an_export(world: World) -> None:
    every = [name for name, _ in world.learner.weights()]
    assert sent(lambda name, tensor: True)(world) == every
    assert matrices(world) == [name for name in every if "norm" not in name]


def test_export_is_rewritten_each_time(world: World) -> None:
    before = [name for name, _ in world.learner.weights()]
    with exported(world, lambda items: ((f"x.{name}", tensor) for name, tensor in items)):
        for _ in range(2):
            assert [name for name, _ in world.learner.weights()] == [f"x.{n}" for n in before]
    assert [name for name, _ in world.learner.weights()] == before


def test_rewriting_fires_when_bytes_change(world: World) -> None:
    items = dict(world.learner.weights())
    name = next(iter(items))
    for change, fired in ((lambda t: t.clone(), 0), (lambda t: t * 2, 1)):
        world.fired = 0
        rewritten = dict(rewriting(world, name, change)(iter(items.items())))
        assert world.fired == fired
        assert all(same_bytes(items[k], rewritten[k]) for k in items if k != name)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (torch.tensor([1.0, 0.0]), True),
        (torch.tensor([1.0, -0.0]), False),
        (torch.tensor([[1.0, 0.0]]), False),
        (torch.tensor([1.0, 0.0], dtype=torch.float64), False),
        (torch.tensor([1.0, 0.0, 9.0])[:2], True),
    ],
)
def test_same_bytes(other: torch.Tensor, same: bool) -> None:
    assert same_bytes(torch.tensor([1.0, 0.0]), other) is same


def test_not_a_number_equals_itself_byte_for_byte() -> None:
    nan = torch.tensor([float("nan")])
    assert same_bytes(nan, nan.clone())


def test_first_tensor_of_a_call_is_replaced(world: World) -> None:
    one, two = torch.zeros(2), torch.zeros(2)
    args = replace_tensor(world, ("layer", one, two, None), lambda tensor: tensor + 1)
    assert args[0] == "layer"
    assert args[1].tolist() == [1, 1]
    assert args[2] is two
    assert world.fired == 1
    replace_tensor(world, (one,), torch.clone)
    assert world.fired == 1


def test_learner_starts_from_another_checkpoint_for_a_while(world: World) -> None:
    before = {name: tensor.clone() for name, tensor in world.learner.weights()}
    double: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, tensor: tensor * 2  # noqa: E731
    with started_from(world, double):
        for name, tensor in world.learner.weights():
            assert same_bytes(tensor, before[name] * 2)
        world.learner.step(1e-3)
    assert all(same_bytes(tensor, before[name]) for name, tensor in world.learner.weights())


@dataclass
class _Info:
    kernel_tensors: tuple[dict[str, Any], dict[str, Any]] = field(
        default_factory=lambda: ({"weight": 1}, {"scale": 2})
    )


def test_what_a_fold_copies_back_into() -> None:
    tensor = torch.zeros(1)
    assert folded_into({"weight": tensor}) == {"weight": tensor}
    assert folded_into(_Info()) == {"weight": 1, "scale": 2}


def test_a_loader_may_only_be_asked() -> None:
    assert is_dry_run(torch.empty(1, device="meta"))
    assert not is_dry_run(torch.empty(1))
