"""Faults that break C11: weights are read, or served, while they are half updated."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from syncguard.faults.registry import fault
from syncguard.faults.tools import Item, exported, folded_into, is_dry_run, octets
from syncguard.faults.world import World

__all__ = ["buffer_reused_too_early", "served_during_sync"]

_WRONG = "weight-bytes weight-values"


@fault(
    "served-during-sync",
    breaks="C11",
    claimed_by="exclusive-sync",
    seam="admit",
    met="W64",
    links=(
        "https://github.com/NVIDIA-NeMo/RL/issues/2180",
        "https://github.com/meta-pytorch/torchforge/issues/251",
    ),
)
def served_during_sync(world: World, site: str) -> Iterator[None]:
    """A request is answered while a sync is open.

    An executor dispatches forwards and updates on paths that do not exclude each other: NaN in 2 %
    of the steps, and policies that are mixed. Pause admission from begin to end.
    """
    with world.wrap("admit", site, lambda original: lambda: None):

        def wrapper(original: Callable[..., None]) -> Callable[..., None]:
            def send(bucket: Iterable[Item]) -> None:
                original(bucket)
                world.engine.generate([[1, 2]], tokens=1, seed=0)
                world.fire()

            return send

        with world.wrap("send", "engine", wrapper):
            yield


@fault(
    "served-after-failed-sync",
    breaks="C11 C5",
    claimed_by=f"exclusive-sync session poison-coverage {_WRONG} exact-probe random-probe",
    seam="admit",
    met="W68 W47",
    links=("https://github.com/THUDM/slime/issues/2280",),
)
def served_after_failed_sync(world: World, site: str) -> Iterator[None]:
    """A sync ends in an error, which nobody passes on, and the engine goes on serving.

    The model is left half updated. Refuse requests until a whole sync has come.
    """

    def broken(items: Iterator[Item]) -> Iterator[Item]:
        yield next(items)
        world.fire()
        raise ConnectionError("the peer closed the connection")

    with world.wrap("admit", site, lambda original: lambda: None), exported(world, broken):
        yield


@fault(
    "buffer-reused-too-early",
    breaks="C11 C2",
    claimed_by=f"{_WRONG} exact-probe random-probe",
    seam="load",
    beside="export",
    met="W59",
    links=(
        "https://github.com/modelscope/ms-swift/issues/10204",
        "https://github.com/modelscope/ms-swift/pull/10207",
    ),
)
def buffer_reused_too_early(world: World, site: str) -> Iterator[None]:
    """The sender fills its transfer buffer again before all readers have copied from it.

    The acknowledgement comes before the barrier; on a CPU the receiver's tensors are views of the
    buffer. A layer that waits for its other half then holds whatever came next.
    """
    size = max(tensor.nbytes for _, tensor in world.learner.weights())
    buffer = torch.zeros(size, dtype=torch.uint8)

    def through_buffer(tensor: torch.Tensor) -> torch.Tensor:
        view = buffer[: tensor.nbytes]
        view.copy_(octets(tensor).view(-1))
        world.fire()
        return view.view(tensor.dtype).view(tensor.shape)

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(first: Any, *rest: Any) -> Any:
            if isinstance(first, str):
                return original(first, through_buffer(rest[0]), *rest[1:])
            return original((name, through_buffer(tensor)) for name, tensor in first)

        return load

    with world.wrap("load", site, wrapper):
        yield


def _torn(world: World, site: str) -> Iterator[None]:
    """Let only the first half of what a loader writes arrive; what the rest held stays.

    By what it writes, not by what it is given: a rank takes a part of that, which may be whole.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(destination: torch.Tensor, loaded: torch.Tensor, *rest: Any) -> Any:
            if is_dry_run(destination):
                return original(destination, loaded, *rest)
            before = octets(destination).clone().view(-1)
            result = original(destination, loaded, *rest)
            after = octets(destination).clone().view(-1)
            written = torch.nonzero(after != before).view(-1)
            late = written[len(written) // 2 :]
            after[late] = before[late]
            destination.data.copy_(after.view(destination.dtype).view(destination.shape))
            world.fire(len(late) > 0)
            return result

        return write

    with world.wrap("loader", site, wrapper):
        yield


@fault(
    "read-before-written",
    breaks="C11 C2",
    claimed_by=_WRONG,
    seam="loader",
    met="W62",
    links=(
        "https://github.com/vllm-project/vllm-ascend/pull/12713",
        "https://github.com/vllm-project/vllm-ascend/pull/16999",
    ),
    sites=lambda site: site.endswith(("norm.weight", "[q]", "[gate]", "_proj.weight")),
)
def read_before_written(world: World, site: str) -> Iterator[None]:
    """A chunk is read on one stream before another stream has written all of it.

    Corrupt weights now and then. Order the streams, and compare fingerprints of both ends at
    every sync.
    """
    yield from _torn(world, site)


@fault(
    "last-copy-in-flight",
    breaks="C11",
    claimed_by=f"{_WRONG} fresh-at-use poison-coverage",
    seam="fold",
    beside="generate",
    met="W61",
    links=(
        "https://github.com/NVIDIA-NeMo/RL/pull/3055",
        "https://github.com/verl-project/verl/pull/7083",
    ),
)
def last_copy_in_flight(world: World, site: str) -> Iterator[None]:
    """The update returns before its last copies are done, and serving resumes.

    Side streams were waited for only before their buffer was used again. Weights are torn for a
    moment; a prefix cache makes it last. Take fingerprints at the end and again later.
    """
    pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def fold(layer: Any, kept: Any, *rest: Any) -> None:
            before = {name: held.data.clone() for name, held in folded_into(kept).items()}
            original(layer, kept, *rest)
            for name, old in before.items():
                held = getattr(layer, name).data
                if held.shape == old.shape and held.dtype == old.dtype:
                    pending.append((held, held.clone()))
                    world.fire(not torch.equal(octets(held), octets(old)))
                    held.copy_(old)

        return fold

    def landing(original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            while pending:
                held, fresh = pending.pop()
                held.copy_(fresh)
            return original(*args, **kwargs)

        return generate

    with world.wrap("fold", site, wrapper), world.wrap("generate", "engine", landing):
        yield
