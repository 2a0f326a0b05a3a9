"""What many faults need: rewriting the export, changing results, telling whether tensors differ."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from syncguard.faults.world import World

__all__ = [
    "Item",
    "exported",
    "folded_into",
    "is_dry_run",
    "matrices",
    "octets",
    "replace_tensor",
    "rewriting",
    "same_bytes",
    "sent",
    "started_from",
]

Item = tuple[str, torch.Tensor]
"""A name on the wire and its tensor."""


def sent(accepts: Callable[[str, torch.Tensor], bool]) -> Callable[[World], list[str]]:
    """Sites of a fault of the export: the names on the wire that a condition accepts."""
    return lambda world: [name for name, tensor in world.learner.weights() if accepts(name, tensor)]


def matrices(world: World) -> list[str]:
    """Sites of a fault of the export: names of weights with two dimensions, scales not."""
    return sent(lambda name, tensor: tensor.ndim > 1 and not name.endswith("_scale"))(world)


def exported(
    world: World, rewrite: Callable[[Iterator[Item]], Iterable[Item]]
) -> AbstractContextManager[None]:
    """Rewrite what the learner exports, one export at a time."""
    return world.wrap("export", "learner", lambda original: lambda: iter(rewrite(original())))


def rewriting(
    world: World, site: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[Iterator[Item]], Iterator[Item]]:
    """A rewrite of one exported tensor; it fires when its bytes change."""

    def rewrite(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            if name != site:
                yield name, tensor
                continue
            other = change(tensor)
            world.fire(not same_bytes(tensor, other))
            yield name, other

    return rewrite


def replace_tensor(
    world: World, args: tuple[Any, ...], change: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[Any, ...]:
    """Change the first tensor among the arguments of a call; it fires when its bytes change."""
    index = next(i for i, value in enumerate(args) if isinstance(value, torch.Tensor))
    other = change(args[index])
    world.fire(not same_bytes(args[index], other))
    return (*args[:index], other, *args[index + 1 :])


@contextmanager
def started_from(
    world: World, change: Callable[[str, torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """Let the learner start from another checkpoint, in which a fault can show."""
    learner = world.learner
    before = dict(learner.checkpoint())
    learner.start_from({name: change(name, tensor) for name, tensor in before.items()})
    try:
        yield
    finally:
        learner.start_from(before)


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one shape, one dtype and the same bytes."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(octets(one), octets(other))


def octets(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, uint8, as a view where it is contiguous."""
    return tensor.detach().contiguous().view(torch.uint8)


def folded_into(kept: Any) -> dict[str, torch.Tensor]:
    """The tensors that a fold copies back into, by name, from what it is called with."""
    if isinstance(kept, Mapping):
        return dict(kept)
    parameters, buffers = kept.kernel_tensors
    return {**parameters, **buffers}


def is_dry_run(destination: torch.Tensor) -> bool:
    """Whether a loader is only asked how much it would write, as layer-wise reloads do."""
    return destination.is_meta
