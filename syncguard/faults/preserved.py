"""Faults that break C10: what no sync brings is lost or changed by one.

The engine is paused and woken between the learner's step and the sync, as in a colocated loop.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import fault, fault_table
from syncguard.faults.tools import same_bytes
from syncguard.faults.world import World

__all__ = ["cache_scales_fall_back", "index_cache_overwritten"]


def _paused(world: World, between: Callable[[], None]) -> Any:
    """Pause and wake the engine before each sync."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def begin(*args: Any) -> None:
            world.engine.sleep(1)
            world.engine.wake()
            between()
            original(*args)

        return begin

    return world.wrap("begin", "engine", wrapper)


_LOST: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "frozen-draft-lost": {
            "sites": lambda site: "speculator" in site and "weight" in site,
            "topology": {"draft": "frozen", "layers": 1},
            "met": "W53",
            "links": (
                "https://github.com/sgl-project/sglang/pull/31674",
                "https://github.com/vllm-project/vllm/pull/49774",
            ),
            "what": "A pause releases the memory of a frozen draft model, which no sync brings.",
            "shows": "Accepted length falls to 1. Keep aside what the stream does not bring.",
        },
        "rotary-table-lost": {
            "sites": lambda site: "_ROPE_TABLES" in site,
            "topology": {"rope": "global", "layers": 1},
            "met": "W55",
            "links": (
                "https://github.com/vllm-project/vllm-ascend/pull/17217",
                "https://github.com/vllm-project/vllm-ascend/pull/13352",
            ),
            "what": "A rotary table in a module's globals loses its content in a pause.",
            "shows": "The backup walks named buffers, and the guard asks only whether the table is "
            "there. Look for tensors in globals, closures and plain objects.",
        },
        "rotary-buffer-lost": {
            "sites": lambda site: site.endswith("cos_sin_cache"),
            "topology": {"layers": 1},
            "met": "W55",
            "what": "A buffer that is not persistent loses its content in a pause.",
            "shows": "No checkpoint and no stream brings it back. Keep it aside, or make it again.",
        },
    }
)


def _lost(world: World, site: str) -> Iterator[None]:
    """Do not keep one tensor aside; at the end it gets its content back."""
    held = next(tensor for path, tensor in world.engine.memory.tensors() if path == site)
    content = held.detach().clone()

    def wrapper(original: Callable[..., bool]) -> Callable[..., bool]:
        del original

        def keeps(path: str, tensor: torch.Tensor) -> bool:
            del path, tensor
            world.fire()
            return False

        return keeps

    try:
        with world.wrap("backup", site, wrapper), _paused(world, lambda: None):
            yield
    finally:
        held.detach().copy_(content)


fault_table(_LOST, lambda: _lost, breaks="C10", claimed_by="preserved-state", seam="backup")


@fault(
    "index-cache-overwritten",
    breaks="C10 C3",
    claimed_by="preserved-state weight-bytes weight-values exact-probe random-probe",
    seam="wake",
    topology={"expert_kernel": "shuffled", "experts": 4, "layers": 1},
    met="W26",
    links=("https://github.com/sgl-project/sglang/pull/28676",),
)
def index_cache_overwritten(world: World, site: str) -> Iterator[None]:
    """A cache of row orders lies in memory that a pause releases, and holds other data afterwards.

    The cache hits, since it is keyed by shape, and new weights are permuted by garbage:
    log-probabilities differed by 3.83 instead of 0.06 after the first sync. Keep such caches
    outside of the pool, and fingerprint module globals across a pause.
    """
    del site
    touched: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def overwrite() -> None:
        for path, tensor in world.engine.memory.tensors():
            if ":_ORDERS" in path and tensor.numel() > 1:
                touched.setdefault(path, (tensor, tensor.clone()))
                tensor.copy_(tensor.roll(1))
                world.fire()

    try:
        with _paused(world, overwrite):
            yield
    finally:
        for tensor, content in touched.values():
            tensor.copy_(content)


@fault(
    "cache-scales-fall-back",
    breaks="C10 C2",
    claimed_by="weight-bytes weight-values",
    seam="finish",
    topology={"kv_scales": True, "layers": 1},
    met="W56",
    links=(
        "https://github.com/vllm-project/vllm/pull/28783",
        "https://github.com/vllm-project/vllm/issues/48310",
    ),
)
def cache_scales_fall_back(world: World, site: str) -> Iterator[None]:
    """Calibrated scales of the KV cache are replaced by the fallback of 1 after a pause.

    The fallback knows only more and less than zero, and takes what it finds for a default. Keep
    the value from before the pause.
    """

    def wrapper(original: Callable[[], Any]) -> Callable[[], Any]:
        def finish() -> Any:
            record = original()
            for path, tensor in world.engine.memory.tensors():
                if path.endswith(("k_scale", "v_scale")):
                    world.fire(not same_bytes(tensor, torch.ones_like(tensor)))
                    tensor.detach().fill_(1.0)
            return record

        return finish

    with world.wrap("finish", site, wrapper):
        yield
