"""Faults that break C5: something is not written, is written twice, or is not folded back."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import Arm, fault, fault_table
from syncguard.faults.tools import Item, exported, sent
from syncguard.faults.world import World

__all__ = ["names_of_another_version", "sent_in_place_of_another", "sent_twice"]

_UNWRITTEN: Final = "weight-bytes weight-values"
_NEVER_SENT: Final = f"ledger exported-weights poison-coverage {_UNWRITTEN}"
_BROKEN_OFF: Final = "session ledger"
"""What tells of a sync that broke off; of what the engine holds then, not all can be read."""
_EXPERTS: Final = {"layers": 1, "experts": 4}


def _any(name: str, tensor: torch.Tensor) -> bool:
    del name, tensor
    return True


def _in_expert(name: str) -> str:
    """The experts that a name belongs to; empty if it is no expert's."""
    head, found, _ = name.partition(".experts.")
    return f"{head}{found}" if found else ""


def _groups(world: World) -> list[str]:
    names = [name for name, _ in world.learner.weights()]
    return list(dict.fromkeys(group for name in names if (group := _in_expert(name))))


_DROPPED: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "weight-never-sent": {
            "gone": lambda site, name: name == site,
            "at": sent(_any),
            "claimed_by": _NEVER_SENT,
            "met": "W05",
            "links": ("https://github.com/vllm-project/vllm/pull/38746",),
            "what": "One weight never comes; where it is part of a fused parameter, nothing tells.",
            "shows": "The loader reports a fused name as loaded as soon as any shard came, and a "
            "layer that is short is processed anyway. Count by shard, not by parameter.",
        },
        "expert-group-never-sent": {
            "gone": lambda site, name: _in_expert(name) == site,
            "at": _groups,
            "topology": _EXPERTS,
            "claimed_by": f"{_NEVER_SENT} exact-probe random-probe",
            "met": "W35",
            "links": ("https://github.com/NovaSky-AI/SkyRL/pull/1471",),
            "what": "A grouped tensor of experts, split over buckets, is never produced.",
            "shows": "The exporter emits a group only if all of its parts are asked for in one "
            "call. The experts stay as they were. Compare the names produced with the manifest.",
        },
        "cache-scales-never-sent": {
            "gone": lambda site, name: name.endswith(("k_scale", "v_scale")),
            "topology": {"kv_scales": True},
            "claimed_by": _NEVER_SENT,
            "met": "W50",
            "links": (
                "https://github.com/NVIDIA-NeMo/RL/issues/3225",
                "https://github.com/NVIDIA-NeMo/RL/pull/3226",
            ),
            "what": "One of two transports drops the calibrated scales of the KV cache.",
            "shows": "All of them are 1.0 from then on. Hold both transports against one manifest.",
        },
    }
)


def _dropping(gone: Callable[[str, str], bool]) -> Arm:
    def arm(world: World, site: str) -> Iterator[None]:
        def drop(items: Iterator[Item]) -> Iterator[Item]:
            for name, tensor in items:
                if gone(site, name):
                    world.fire()
                else:
                    yield name, tensor

        with exported(world, drop):
            yield

    return arm


fault_table(_DROPPED, _dropping, breaks="C5", seam="export")


@fault(
    "sent-in-place-of-another",
    breaks="C5",
    claimed_by=f"ledger exported-weights {_UNWRITTEN} exact-probe",
    seam="export",
    met="W04",
    links=("https://github.com/vllm-project/vllm/issues/48312",),
    at=sent(lambda name, tensor: name.endswith(("k_proj.weight", "gate_proj.weight"))),
)
def sent_in_place_of_another(world: World, site: str) -> Iterator[None]:
    """A shard comes twice and its neighbour never: the count of elements is right.

    The engine reports success, and a part of the fused parameter is NaN or leftover memory. Keep a
    set of (name, shard, expert), not a count.
    """
    twin = site.replace("k_proj", "v_proj").replace("gate_proj", "up_proj")

    def twice(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            world.fire(name == site)
            yield (twin if name == site else name), tensor

    with exported(world, twice):
        yield


@fault("sent-twice", breaks="C5", claimed_by="ledger", seam="export", at=sent(_any))
def sent_twice(world: World, site: str) -> Iterator[None]:
    """A weight is sent twice, with the same content.

    A retried bucket does so. What is served is right this time; the second copy would hide a
    weight that is missing. Make retries replace a bucket, and count arrivals by name.
    """

    def twice(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            yield name, tensor
            if name == site:
                world.fire()
                yield name, tensor

    with exported(world, twice):
        yield


def _renamed(site: str) -> str:
    return f"language_model.{site}"


@fault(
    "names-of-another-version",
    breaks="C5",
    claimed_by=f"exported-weights {_BROKEN_OFF}",
    seam="export",
    met="W80 W67",
    links=(
        "https://github.com/verl-project/verl/pull/6896",
        "https://github.com/PrimeIntellect-ai/prime-rl/pull/2690",
        "https://github.com/THUDM/slime/issues/1673",
    ),
    at=sent(_any),
    silent=False,
)
def names_of_another_version(world: World, site: str) -> Iterator[None]:
    """A weight goes out under a name that the engine does not know.

    An upgrade of a library renamed it, or one of two exporters does not know the prefix. Loud
    where the loader refuses unknown names. Hold the names of both sides against each other.
    """

    def rename(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            world.fire(name == site)
            yield (_renamed(name) if name == site else name), tensor

    with exported(world, rename):
        yield


@fault(
    "shard-sent-without-gather",
    breaks="C5 C2",
    claimed_by=f"exported-weights {_BROKEN_OFF}",
    seam="export",
    met="W68",
    links=("https://github.com/THUDM/slime/issues/2280",),
    at=sent(lambda name, tensor: tensor.ndim > 1 and "_proj" in name),
    silent=False,
)
def shard_sent_without_gather(world: World, site: str) -> Iterator[None]:
    """A rank sends its own part of a weight as if it were the whole.

    A flag is missing on the parameter, so the gather is skipped; the model is left half updated.
    Compare shapes on the wire with the manifest.
    """

    def half(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            world.fire(name == site)
            yield name, (tensor[: tensor.shape[0] // 2] if name == site else tensor)

    with exported(world, half):
        yield
