"""A world merges the seams of its sides, counts firings, and builds a side again if it must."""

from collections.abc import Callable
from typing import Any

import pytest

from syncguard.checks import CHECKS
from syncguard.faults import FAULTS, World
from syncguard.seams import Seam
from tests.faults.helpers import make_world


class _Side:
    def __init__(self, name: str, *, build: bool = False) -> None:
        self.name, self.build, self.starts = name, build, 0
        self.restart()

    def choose(self) -> str:
        return "plain"

    def restart(self) -> None:
        self.starts += 1
        self.chosen = self.choose()

    def seams(self) -> dict[str, dict[str, Seam]]:
        return {"backend": {self.name: Seam(self, "choose", build=self.build)}}


def _other(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: f"not {original()}"


def test_seams_of_both_sides_and_of_the_checks() -> None:
    world = World(lambda: _Side("learner"), lambda: _Side("engine"))
    assert set(world.seams()["backend"]) == {"engine", "learner"}
    assert set(world.seams()["check"]) == set(CHECKS)


def test_a_side_without_seams_has_none() -> None:
    assert set(World(object, object).seams()) == {"check"}


def test_firings_are_counted() -> None:
    world = World(object, object)
    world.fire()
    world.fire(3)
    world.fire(False)
    assert world.fired == 4


def test_what_is_asked_at_every_call_is_not_built_again() -> None:
    world = World(object, lambda: _Side("engine"))
    with world.wrap("backend", "engine", _other):
        assert (world.engine.choose(), world.engine.chosen) == ("not plain", "plain")
    assert (world.engine.choose(), world.engine.starts) == ("plain", 1)


@pytest.mark.parametrize("name", ["learner", "engine"])
def test_what_is_asked_at_start_is_built_again(name: str) -> None:
    world = World(lambda: _Side("learner", build=True), lambda: _Side("engine", build=True))
    side, other = (world.learner, world.engine)[:: 1 if name == "learner" else -1]
    with world.wrap("backend", name, _other):
        assert (side.chosen, side.starts, other.starts) == ("not plain", 2, 1)
    assert (side.chosen, side.starts, other.starts) == ("plain", 3, 1)


def test_a_side_is_built_again_after_an_error_too() -> None:
    world = World(object, lambda: _Side("engine", build=True))
    with pytest.raises(ZeroDivisionError), world.wrap("backend", "engine", _other):
        raise ZeroDivisionError
    assert world.engine.chosen == "plain"


def test_the_walk_passes_by_what_stands_in() -> None:
    """A fault holds the world; what it holds is no state of the engine."""
    world = make_world(FAULTS["workspace-made-again"])
    before = {row.path for row in world.engine.storage()}
    site = "model.layers.0.self_attn.qkv_proj"
    with FAULTS["workspace-made-again"].armed(world, site):
        assert {row.path for row in world.engine.storage()} == before
