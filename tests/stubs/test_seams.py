"""Seams replace a callable for a while, and leave no trace."""

import contextlib
import functools
from typing import Any

import pytest

from syncguard.seams import SEAM_NAMES, Seam
from syncguard.stubs import Topology
from tests.stubs.helpers import (
    TOPOLOGIES,
    counting,
    differing_prints,
    pair,
    places,
    policy_gap,
    sync,
)


class _Owner:
    def double(self, number: int) -> int:
        """Twice."""
        return 2 * number


def _negated(original: Any) -> Any:
    return lambda number: -original(number)


def test_wrapping_ends_with_the_context() -> None:
    owner = _Owner()
    seam = Seam(owner, "double")
    with seam.wrap(_negated):
        assert owner.double(3) == -6
        assert owner.double.__doc__ == "Twice."
        with seam.wrap(lambda original: lambda number: original(number) + 1):
            assert owner.double(3) == -5
        assert owner.double(3) == -6
    assert owner.double(3) == 6
    assert vars(owner) == {}


def test_wrapping_ends_with_an_error() -> None:
    owner = _Owner()
    with pytest.raises(KeyError), Seam(owner, "double").wrap(_negated):
        raise KeyError
    assert vars(owner) == {}


def test_own_attribute_is_put_back() -> None:
    owner = _Owner()
    own = owner.double = lambda number: number  # type: ignore[method-assign]
    with Seam(owner, "double").wrap(_negated):
        assert owner.double(3) == -3
    assert owner.double is own


def test_seam_of_some_calls() -> None:
    owner = _Owner()
    with Seam(owner, "double", lambda number: number > 2).wrap(_negated):
        assert [owner.double(n) for n in (2, 3)] == [4, -6]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_seam_can_be_wrapped_and_is_restored(name: str) -> None:
    learner, engine = pair(TOPOLOGIES[name])
    sync(learner, engine)
    engine.probe_exact()
    state, stored = engine.state(), places(engine)
    sites = {**engine.seams()}
    for seam_name, seams in learner.seams().items():
        sites[seam_name] = sites.get(seam_name, {}) | seams
    assert sites.keys() <= set(SEAM_NAMES)
    assert all(sites.values())
    for seams in sites.values():
        for seam in seams.values():
            before = dict(vars(seam.owner))
            with seam.wrap(lambda original: lambda *args, **kw: original(*args, **kw)):
                assert vars(seam.owner) != before
            assert vars(seam.owner) == before
    assert (engine.state(), places(engine)) == (state, stored)


def test_seams_cover_their_names() -> None:
    rich = Topology(layers=1, experts=2, expert_kernel="two_level")
    learner, engine = pair(rich)
    assert {*learner.seams(), *engine.seams(), "check"} == set(SEAM_NAMES)


def test_every_seam_of_a_sync_is_passed() -> None:
    """A fault at a site that nothing passes would fire on nothing."""
    learner, engine = pair(Topology(layers=1, experts=2, expert_kernel="two_level", ranks=2))
    unused = {"backend", "backup", "exclusion", "graph", "init", "observe", "sleep", "step", "wake"}
    fired: set[tuple[str, str]] = set()
    sites = [
        (name, site, seam)
        for side in (engine.seams(), learner.seams())
        for name, seams in side.items()
        if name not in unused
        for site, seam in seams.items()
    ]
    with contextlib.ExitStack() as wraps:
        for name, site, seam in sites:
            wrapper = counting(functools.partial(fired.add, (name, site)))
            wraps.enter_context(seam.wrap(wrapper))
        sync(learner, engine)
        policy_gap(learner, engine)
    silent = {(name, site) for name, site, _ in sites} - fired
    assert silent == set()


def test_exclusion_and_backend_are_asked_when_an_engine_is_built() -> None:
    learner, engine = pair(Topology(layers=1))
    with (
        engine.seams()["exclusion"]["engine"].wrap(
            lambda original: lambda module: original(module) or "gate" in module
        ),
        engine.seams()["backend"]["engine"].wrap(
            lambda original: lambda module: "twin" if "o_proj" in module else original(module)
        ),
    ):
        assert engine.seams()["exclusion"]["engine"].build
        engine.restart()
    sync(learner, engine)
    table = {layer.module: layer for layer in engine.layers()}
    assert table["model.layers.0.mlp.gate_up_proj"].grid == "bf16"
    assert table["model.layers.0.mlp.down_proj"].grid == "mxfp8"
    assert table["model.layers.0.self_attn.o_proj"].kernel == "Mxfp8Kernel[twin]"
    assert len(differing_prints(learner, engine)) == 2


@pytest.mark.parametrize("tied", [False, True])
def test_quantized_head_and_embedding(tied: bool) -> None:
    learner, engine = pair(Topology(layers=1, tied=tied, vocab=33))
    with engine.seams()["exclusion"]["engine"].wrap(lambda original: lambda module: False):
        engine.restart()
    sync(learner, engine)
    wrong = {"model.embed_tokens.weight", "lm_head.weight"}
    assert differing_prints(learner, engine) == wrong
    assert {layer.grid for layer in engine.layers()} == {"mxfp8"}
    assert 0.05 < policy_gap(learner, engine) < 5
