"""Faults that break C8: the policy that serves is not the version that was published."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from syncguard.faults.registry import fault
from syncguard.faults.world import World

__all__ = ["checkpoint_loaded_in_generate", "served_before_first_sync", "version_not_committed"]

_OLD: float = 0.5


@fault(
    "version-not-committed",
    breaks="C8",
    claimed_by="served-version",
    seam="version",
    sites=lambda site: site == "commit",
)
def version_not_committed(world: World, site: str) -> Iterator[None]:
    """The weights are new, and the engine goes on reporting the version before.

    Whoever drops stale samples by version drops the wrong ones. Commit the version with the
    weights.
    """

    def wrapper(original: Callable[[str], None]) -> Callable[[str], None]:
        del original

        def commit(version: str) -> None:
            del version
            world.fire()

        return commit

    with world.wrap("version", site, wrapper):
        yield


@fault(
    "version-of-another-run",
    breaks="C8",
    claimed_by="served-version",
    seam="version",
    sites=lambda site: site == "version",
)
def version_of_another_run(world: World, site: str) -> Iterator[None]:
    """The engine answers the question for its version from a cache.

    Ask the process that serves, at the time of use.
    """

    def wrapper(original: Callable[[], str]) -> Callable[[], str]:
        first = original()

        def version() -> str:
            world.fire(original() != first)
            return first

        return version

    with world.wrap("version", site, wrapper):
        yield


def _loading_again(world: World, site: str, *, after: bool) -> Iterator[None]:
    """Load the weights of the start again, at the first request after each sync."""
    base = [(name, tensor.clone()) for name, tensor in world.learner.weights()]
    base = [(name, _older(tensor)) for name, tensor in base]
    due = False

    def note_end(original: Callable[..., Any]) -> Callable[..., Any]:
        def finish() -> Any:
            nonlocal due
            due = True
            return original()

        return finish

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            nonlocal due
            again, due = due, False
            if again and not after:
                _load(world, base)
            answers = original(*args, **kwargs)
            if again and after:
                _load(world, base)
            return answers

        return generate

    with world.wrap("finish", "engine", note_end), world.wrap("generate", site, wrapper):
        yield


def _older(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * _OLD if tensor.dtype in (torch.bfloat16, torch.float32) else tensor


def _load(world: World, weights: list[tuple[str, torch.Tensor]]) -> None:
    """Bring weights into the engine as its own start does, under the version it reports."""
    engine = world.engine
    engine.begin(0, engine.version())
    engine.send(weights)
    type(engine).finish(engine)
    world.fire()


@fault(
    "checkpoint-loaded-in-generate",
    breaks="C8 C6",
    claimed_by="fresh-at-use paired-logprobs",
    seam="generate",
    met="W44",
    links=(
        "https://github.com/huggingface/trl/issues/5312",
        "https://github.com/huggingface/trl/pull/5313",
    ),
)
def checkpoint_loaded_in_generate(world: World, site: str) -> Iterator[None]:
    """A wake-up inside a request loads the checkpoint again, over what the sync brought.

    Log-probabilities differed by 0.201 instead of 0.015 in every run with sleep on. Look at
    weights and version again when a request has been served, not only when the sync ends.
    """
    yield from _loading_again(world, site, after=False)


@fault(
    "checkpoint-loaded-after-a-request",
    breaks="C8",
    claimed_by="fresh-at-use",
    seam="generate",
    met="W44",
)
def checkpoint_loaded_after_a_request(world: World, site: str) -> Iterator[None]:
    """The first request is served right, and then the checkpoint is loaded again behind it.

    As above, one request later: nothing that looked before sees it.
    """
    yield from _loading_again(world, site, after=True)


@fault(
    "served-before-first-sync",
    breaks="C8",
    claimed_by="fresh-at-use storage-identity weight-bytes weight-values exact-probe random-probe",
    seam="finish",
    met="W65",
    links=("https://github.com/radixark/miles/issues/1724",),
    at=lambda world: ["engine"] if hasattr(world.engine, "restart") else [],
    topology={"graph": False},
)
def served_before_first_sync(world: World, site: str) -> Iterator[None]:
    """An engine that replaces a broken one gets requests before its first sync.

    It joined the router when it started; the broadcast came later, and samples of the base
    checkpoint entered training. Let an engine in when its fingerprint is the published one.
    """

    def wrapper(original: Callable[[], Any]) -> Callable[[], Any]:
        def finish() -> Any:
            record = original()
            world.engine.restart()
            world.fire()
            return record

        return finish

    with world.wrap("finish", site, wrapper):
        yield
