"""Faults that break C12: what is exported is not what the learner trains."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import Arm, fault, fault_table
from syncguard.faults.tools import Item, exported, same_bytes
from syncguard.faults.world import World

__all__ = ["buffers_initialized_late", "merging_drifts"]

_STALE: Final = "exported-weights weight-bytes weight-values exact-probe"

_SOURCES: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "conversion-cached": {
            "chosen": lambda name: True,
            "met": "W38",
            "links": ("https://github.com/NovaSky-AI/SkyRL/pull/1345",),
            "what": "Conversion tasks are kept across syncs, with what they referred to at first.",
            "shows": "The first sync is right, every later one sends the first again: rewards are "
            "unstable, then collapse. Test a second sync with other weights.",
        },
        "base-sent-without-adapter": {
            "chosen": lambda name: True,
            "met": "W41",
            "links": ("https://github.com/verl-project/verl/issues/7495",),
            "what": "The adapter is never delivered; the frozen base is sent every time.",
            "shows": "All tensors are bit-identical from sync to sync. For two months it looked "
            "like asynchronous staleness. Ask whether anything changed since the last sync.",
        },
        "iterator-outlives-merge": {
            "chosen": lambda name: "_proj" in name,
            "met": "W40",
            "links": ("https://github.com/verl-project/verl/pull/7014",),
            "what": "A lazy export is consumed after the merged adapter was taken out again.",
            "shows": "Its tensors are views of live storage, so the base goes out, and "
            "probabilities drift apart with each step. Consume the export inside the context.",
        },
    }
)


def _sending_base(chosen: Callable[[str], bool]) -> Arm:
    """Send some weights as they were when the fault was armed."""

    def arm(world: World, site: str) -> Iterator[None]:
        del site
        base = {name: tensor.clone() for name, tensor in world.learner.weights() if chosen(name)}

        def stale(items: Iterator[Item]) -> Iterator[Item]:
            for name, tensor in items:
                old = base.get(name, tensor)
                world.fire(not same_bytes(tensor, old))
                yield name, old

        with exported(world, stale):
            yield

    return arm


fault_table(_SOURCES, _sending_base, breaks="C12 C2", claimed_by=_STALE, seam="export", late=True)


@fault(
    "delta-lost",
    breaks="C5 C2",
    claimed_by=_STALE,
    seam="export",
    met="W47",
    links=(
        "https://github.com/THUDM/slime/issues/2104",
        "https://github.com/THUDM/slime/pull/2119",
    ),
    late=True,
)
def delta_lost(world: World, site: str) -> Iterator[None]:
    """The receiver refuses a delta, the sender's snapshot has moved on, and it is never sent again.

    The caller drops the refusal. Every position that was in it stays wrong for good. Acknowledge
    each sync with the receiver's checksum of whole tensors.
    """
    snapshot = {name: tensor.clone() for name, tensor in world.learner.weights()}
    refused: dict[str, torch.Tensor] = {}

    def deltas(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            if not refused and not same_bytes(tensor, snapshot[name]):
                refused[name] = snapshot[name]
            old = refused.get(name, tensor)
            world.fire(not same_bytes(tensor, old))
            yield name, old

    with exported(world, deltas):
        yield


def _live_exports(world: World) -> list[str]:
    """The export, where it hands out the learner's own tensors and no copies."""
    one, other = (next(iter(world.learner.weights()))[1] for _ in range(2))
    return ["learner"] if one.data_ptr() == other.data_ptr() else []


@fault(
    "merging-drifts",
    breaks="C12",
    claimed_by="learner-unchanged",
    seam="export",
    met="W43",
    links=("https://github.com/modelscope/ms-swift/pull/10154",),
    late=True,
    at=_live_exports,
)
def merging_drifts(world: World, site: str) -> Iterator[None]:
    """To merge an adapter and to take it out again is not exact in bf16: the export trains.

    Engine and learner agree, and both have moved. An adapter starts at zero, so the first sync is
    exact. Fingerprint the learner before and after.
    """
    trained = False

    def note_step(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal trained
            trained = True
            return original(*args, **kwargs)

        return step

    def merge(items: Iterator[Item]) -> Iterator[Item]:
        for number, (name, tensor) in enumerate(items):
            if trained and tensor.ndim > 1 and tensor.dtype == torch.bfloat16:
                before = tensor.clone()
                generator = torch.Generator().manual_seed(number)
                adapter = torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
                tensor.add_(adapter).sub_(adapter)
                world.fire(not same_bytes(tensor, before))
            yield name, tensor

    with world.wrap("step", "learner", note_step), exported(world, merge):
        yield


@fault(
    "buffers-initialized-late",
    breaks="C12",
    claimed_by="checkpoint-loaded",
    seam="init",
    topology={"experts": 4, "layers": 1},
    met="W92",
    links=("https://github.com/PrimeIntellect-ai/prime-rl/pull/3333",),
)
def buffers_initialized_late(world: World, site: str) -> Iterator[None]:
    """The learner initializes its buffers after it has loaded the checkpoint.

    Routing is wrong on both sides alike, and a replay of routes hides it. Compare the learner
    with its checkpoint before the first step, buffers included.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(tensors: Mapping[str, torch.Tensor]) -> Any:
            loaded = original(tensors)
            for name, tensor in loaded.items():
                if name.endswith("e_score_correction_bias"):
                    world.fire(bool(tensor.any()))
                    tensor.zero_()
            return loaded

        return load

    with world.wrap("init", site, wrapper):
        yield
