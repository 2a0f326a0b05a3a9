"""Faults that break C5 between buckets: a layer is completed too early, too late, or by halves."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch

from syncguard.faults.registry import fault
from syncguard.faults.tools import Item, sent
from syncguard.faults.world import World
from syncguard.observations import Loaded
from syncguard.seams import Seam

__all__ = ["completed_only_at_the_end", "halves_kept_for_one_call", "session_per_bucket"]

_UNWRITTEN: Final = "weight-bytes weight-values"
_STARTS: Final = ("start_weight_update", "begin")
"""What opens a session of a live engine."""


def folded_per_bucket(world: World, site: str, *, opens_again: bool) -> Iterator[None]:
    """Complete every layer after each weight, with or without opening a new session.

    The fault sends weight by weight, which is healthy by itself: so each fused layer is split.
    """
    flush = world.seam("flush", "engine")

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def send(bucket: Iterable[Item]) -> None:
            for item in bucket:
                original([item])
                world.fire()
                _complete(flush, opens_again=opens_again)

        return send

    with world.wrap("send", site, wrapper):
        yield


def _complete(seam: Seam, *, opens_again: bool) -> None:
    """Let an engine complete what it has; a live one must then begin anew to take more."""
    transfer = seam.owner
    with torch.no_grad():
        getattr(transfer, seam.attribute)()
        if not hasattr(transfer, "receivers"):
            next(getattr(transfer, name) for name in _STARTS if hasattr(transfer, name))()
        elif opens_again:
            for receiver in transfer.receivers:
                receiver.open()


@fault(
    "folded-without-last-mark",
    breaks="C5",
    claimed_by=f"{_UNWRITTEN} exact-probe random-probe paired-logprobs",
    seam="send",
    beside="flush",
    met="F7",
)
def folded_without_last_mark(world: World, site: str) -> Iterator[None]:
    """Staging ends with each bucket, for want of a mark on the last one.

    A layer that is split over two buckets is folded half-written, and its second half is dropped.
    Mark the last bucket, and complete the rest only then.
    """
    yield from folded_per_bucket(world, site, opens_again=False)


@fault(
    "session-per-bucket",
    breaks="C5 C3",
    claimed_by=f"{_UNWRITTEN} exact-probe random-probe paired-logprobs",
    seam="send",
    beside="flush",
    met="W02",
    links=(
        "https://github.com/NovaSky-AI/SkyRL/pull/1737",
        "https://github.com/NovaSky-AI/SkyRL/pull/1685",
    ),
)
def session_per_bucket(world: World, site: str) -> Iterator[None]:
    """Every bucket has a session of its own: begin and finish once per bucket, not per sync.

    A layer that is split over two is processed from half-filled memory each time. Open one
    session per sync.
    """
    yield from folded_per_bucket(world, site, opens_again=True)


def _halves(world: World) -> list[str]:
    return sent(lambda name, tensor: name.endswith("gate_proj.weight"))(world)


@fault(
    "halves-kept-for-one-call",
    breaks="C5",
    claimed_by=f"ledger poison-coverage {_UNWRITTEN} exact-probe random-probe",
    seam="send",
    met="W34",
    links=(
        "https://github.com/sgl-project/sglang/pull/38298",
        "https://github.com/sgl-project/sglang/issues/14178",
    ),
    at=_halves,
)
def halves_kept_for_one_call(world: World, site: str) -> Iterator[None]:
    """A fused tensor is written only if both of its halves come in one call.

    The first half waits in a dictionary of that call. Fine with large buckets; with a boundary
    between the halves both are dropped: KL 1.5 instead of 0.001. The size of buckets must not
    matter.
    """
    pair = {site, site.replace("gate_proj", "up_proj")}

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def send(bucket: Iterable[Item]) -> None:
            rest = [item for item in bucket if item[0] not in pair]
            world.fire(len(rest) < len(list(bucket)))
            original(rest)

        return send

    with world.wrap("send", "engine", wrapper):
        yield


@fault(
    "completed-only-at-the-end",
    breaks="C5",
    claimed_by="session",
    seam="load",
    beside="export flush",
    met="W05",
    links=("https://github.com/vllm-project/vllm/pull/38746",),
)
def completed_only_at_the_end(world: World, site: str) -> Iterator[None]:
    """A layer is never complete by its count, since one of its parts counts under two modules.

    The end of the session processes what is left, this time with everything there; it would do so
    just as well without. Count by place.
    """
    late = _Late(next(n for n, _ in world.learner.weights() if n.endswith("v_proj.weight")))

    def deliver(original: Callable[[], None]) -> Callable[[], None]:
        def flush() -> None:
            while late.held:
                load, args = late.held.pop()
                load(*args)
                world.fire()
            original()

        return flush

    with world.wrap("load", site, late.wrapper), world.wrap("flush", "engine", deliver):
        yield


class _Late:
    """Holds one weight back from the loads of a sync.

    Attributes:
        held: What is still to be called, with its arguments.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.held: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Replace a load of one weight, or of an iterator of weights."""

        def load(*args: Any) -> Any:
            if not isinstance(args[0], str):
                return original(self._others(original, args[0]))
            if args[0] != self._name:
                return original(*args)
            self.held.append((original, args))
            return _promised(getattr(original, "__self__", None), *args)

        return load

    def _others(self, original: Callable[..., Any], items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            if item[0] == self._name:
                self.held.append((original, ([item],)))
            else:
                yield item


def _promised(receiver: Any, name: str, tensor: torch.Tensor, bucket: int) -> list[Loaded]:
    """What a rank of the stub tells of a weight that it takes."""
    return [
        Loaded(
            weight=name,
            parameter=f"{layer.path}.{shard.parameter}",
            shard=shard.shard,
            expert=-1,
            numel=tensor.numel(),
            bucket=bucket,
            rank=receiver.rank.number,
        )
        for layer, shard in receiver.route(name)
    ]
