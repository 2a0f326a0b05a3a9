"""Faults that break C3 where a kernel keeps its layout in place, or derives scales from scales."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import fault, fault_table
from syncguard.faults.tools import Item, exported, same_bytes, started_from
from syncguard.faults.world import World
from syncguard.fingerprint import fingerprint

__all__ = ["level_of_the_sync_before", "one_level_for_both_halves", "repack_not_undone"]

_PROBES: Final = "exact-probe random-probe"
_READABLE: Final = f"{_PROBES} re-derivation"
_EXPERTS: Final = {"layers": 1, "experts": 4}

_IN_PLACE: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "repack-not-undone": {
            "what": "An expert repack that keeps shape and dtype is not recognized as one.",
            "shows": "Checkpoint rows are written into the shuffled buffer and multiplied as if "
            "they were shuffled: relative error 1.74, KL 25 times its baseline, while the audit "
            "of parameters agrees on all of them. Never infer a layout from a shape.",
            "topology": {"expert_kernel": "shuffled", **_EXPERTS},
            "claimed_by": f"weight-bytes weight-values {_READABLE}",
            "met": "F4 W15",
            "links": (
                "https://github.com/verl-project/verl/pull/7986",
                "https://github.com/verl-project/verl/issues/7978",
            ),
        },
        "halves-swapped-at-start-only": {
            "what": "A kernel that wants up before gate swapped them at start, and never again.",
            "shows": "A later load writes gate before up into the same buffer, and the kernel "
            "multiplies the wrong halves: garbage text after the first sync. Read the weights "
            "back through the kernel.",
            "topology": {"expert_kernel": "swapped", "quantization": "none", **_EXPERTS},
            "met": "W01",
            "links": (
                "https://github.com/vllm-project/vllm/issues/42821",
                "https://github.com/NovaSky-AI/SkyRL/issues/1680",
            ),
        },
        "halves-interleaved-at-start-only": {
            "what": "A kernel that wants gate and up interleaved gets them so at start only.",
            "shows": "As with swapped halves. Read the weights back through the kernel.",
            "topology": {"expert_kernel": "interleaved", **_EXPERTS},
        },
    }
)


def repack_not_undone(world: World, site: str) -> Iterator[None]:
    """Leave the rows of a layer in checkpoint order, in the buffer of a reordering kernel."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def as_they_came(layer: Any, *args: Any, **kwargs: Any) -> None:
            came = {name: held.data.clone() for name, held in layer.named_parameters(recurse=False)}
            original(layer, *args, **kwargs)
            for name, tensor in came.items():
                held = getattr(layer, name).data
                world.fire(not same_bytes(held, tensor))
                held.copy_(tensor)

        return as_they_came

    with world.wrap("post_process", site, wrapper):
        yield


fault_table(
    _IN_PLACE,
    lambda: repack_not_undone,
    breaks="C3 C2",
    claimed_by=f"weight-bytes weight-values {_PROBES}",
    seam="post_process",
    sites=lambda site: site.endswith(".experts"),
)


@fault(
    "processed-twice",
    breaks="C3 C2",
    claimed_by=f"weight-bytes weight-values {_PROBES}",
    seam="post_process",
    topology={"expert_kernel": "shuffled", **_EXPERTS},
    met="W07",
    links=("https://github.com/sgl-project/sglang/pull/6265",),
    sites=lambda site: site.endswith(".experts"),
)
def processed_twice(world: World, site: str) -> Iterator[None]:
    """A second pass of post-processing runs over a tensor that is processed already.

    Finalizing twice must equal finalizing once: start from canonical tensors each time.
    """

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def twice(layer: Any, *args: Any, **kwargs: Any) -> None:
            original(layer, *args, **kwargs)
            world.fire()
            original(layer, *args, **kwargs)

        return twice

    with world.wrap("post_process", site, wrapper):
        yield


def _where_it_quantizes(world: World) -> list[str]:
    """Layers whose weights come in the model's dtype; those of a serialized checkpoint do not."""
    return list(world.seams()["process"]) if world.engine.wire == "bf16" else []


@fault(
    "second-quantization-skipped",
    breaks="C3 C1",
    claimed_by="storage-identity destinations",
    seam="process",
    met="W85",
    links=("https://github.com/ROCm/vllm/pull/1239",),
    at=_where_it_quantizes,
    sites=lambda site: site.endswith("_proj"),
    silent=False,
)
def second_quantization_skipped(world: World, site: str) -> Iterator[None]:
    """A flag of the layer makes the second quantization return at once.

    The kernel gets a tensor in the model's dtype. Compare the dtype of live tensors with the
    expected one at each sync.
    """

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        del original

        def return_at_once(layer: Any) -> None:
            del layer
            world.fire()

        return return_at_once

    with world.wrap("process", site, wrapper):
        yield


def _larger(part: str, factor: float) -> Callable[[str, torch.Tensor], torch.Tensor]:
    return lambda name, tensor: tensor * factor if part in name else tensor


@fault(
    "padding-from-recycled-memory",
    breaks="C3",
    claimed_by="equal-sync",
    seam="loader",
    topology={"sinks": True, "layers": 1},
    sites=lambda site: site.endswith(".sinks"),
)
def padding_from_recycled_memory(world: World, site: str) -> Iterator[None]:
    """Memory for loading is not zeroed where a sync brings the weights of the sync before.

    Allocations of the same sizes in the same order get recycled blocks. Weights are right, what
    pads them is not, and some kernels read it. Sync the same weights again: no byte may change.
    """
    payloads: list[dict[str, int]] = [{}]

    def note(items: Iterator[Item]) -> Iterator[Item]:
        payloads.append({})
        for name, tensor in items:
            payloads[-1][name] = fingerprint(tensor)
            yield name, tensor

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def write(destination: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
            original(destination, loaded, shard)
            before, now = payloads[-2:]
            if now and all(before.get(name) == print_ for name, print_ in now.items()):
                destination.data[shard.rows.stop :] = float(len(payloads))
                world.fire()

        return write

    with exported(world, note), world.wrap("loader", site, wrapper):
        yield


@fault(
    "level-of-the-sync-before",
    breaks="C3",
    claimed_by=_READABLE,
    seam="level",
    topology={"expert_kernel": "two_level", "linear_kernel": "two_level", **_EXPERTS},
    met="W13",
    links=("https://github.com/vllm-project/vllm/pull/57954",),
)
def level_of_the_sync_before(world: World, site: str) -> Iterator[None]:
    """Second-level scales are derived from those of the sync before, which a config still holds.

    They lag one version behind; syncing the same weights again cannot show it. Derive each scale
    again from the synchronized ones.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def late(layer: Any) -> Any:
            kept = {name: level.clone() for name, level in layer.kernel.levels.items()}
            fresh = original(layer)
            world.fire(any(not same_bytes(kept[name], fresh[name]) for name in kept))
            return kept or fresh

        return late

    with started_from(world, _larger("_proj", 4.0)), world.wrap("level", site, wrapper):
        yield


@fault(
    "one-level-for-both-halves",
    breaks="C2 C3",
    claimed_by=_READABLE,
    seam="level",
    topology={"expert_kernel": "two_level", "linear_kernel": "two_level", **_EXPERTS},
    met="W73",
    links=(
        "https://github.com/vllm-project/vllm/issues/54974",
        "https://github.com/vllm-project/vllm/pull/47515",
    ),
    sites=lambda site: site.endswith(".experts"),
)
def one_level_for_both_halves(world: World, site: str) -> Iterator[None]:
    """Gate and up have different second-level scales, and one of them is used for both.

    Block scales are not rebased: up is off by up to a factor of 10, with a warning at most. Round
    both with one maximum, or compare the dequantized halves.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def first_for_both(layer: Any) -> Any:
            found = original(layer)
            used = {name: level[..., :1].expand_as(level) for name, level in found.items()}
            world.fire(any(not same_bytes(used[name], found[name]) for name in found))
            return used

        return first_for_both

    with started_from(world, _larger("up_proj", 4.0)), world.wrap("level", site, wrapper):
        yield
