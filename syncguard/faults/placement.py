"""Faults that break C13: a sync changes where things are, or what computes with them."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from syncguard.faults.registry import fault
from syncguard.faults.world import World

__all__ = ["expert_placement_ignored", "kernel_chosen_again"]

_BALANCED = {"experts": 4, "redundant_experts": 2, "layers": 1}


@fault(
    "kernel-chosen-again",
    breaks="C13",
    claimed_by="placement",
    seam="process",
    met="W86",
    links=(
        "https://github.com/vllm-project/vllm/pull/45989",
        "https://github.com/vllm-project/vllm/pull/44613",
    ),
    sites=lambda site: site.endswith(("_proj", ".experts")),
)
def kernel_chosen_again(world: World, site: str) -> Iterator[None]:
    """A sync builds a layer's kernel again, from a global configuration that is another by then.

    This one computes alike; the ones met crashed or computed something else. Record kernel and
    configuration of each layer, and compare after each sync.
    """
    changed: dict[int, tuple[Any, type]] = {}

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def choose_again(layer: Any) -> None:
            original(layer)
            # Where a method has no kernel object, it is the kernel itself.
            kernel = getattr(layer.quant_method, "kernel", layer.quant_method)
            if id(kernel) not in changed:
                changed[id(kernel)] = kernel, type(kernel)
                kernel.__class__ = type("OtherKernel", (type(kernel),), {})
                world.fire()

        return choose_again

    try:
        with world.wrap("process", site, wrapper):
            yield
    finally:
        for kernel, cls in changed.values():
            kernel.__class__ = cls


@fault(
    "expert-placement-ignored",
    breaks="C2 C13",
    claimed_by="weight-bytes weight-values exact-probe random-probe",
    seam="placement",
    topology=_BALANCED,
    met="W49",
    links=(
        "https://github.com/vllm-project/vllm/pull/55228",
        "https://github.com/PrimeIntellect-ai/prime-rl/pull/3583",
    ),
)
def expert_placement_ignored(world: World, site: str) -> Iterator[None]:
    """A sync writes experts where they were at start, while routing uses a rebalanced map.

    Experts change places: [110, 120, 130, 140] came out as [110, 130, 120, 140]. Compare bytes
    through the live map, every copy of an expert included.
    """
    layer = world.seam("placement", site).owner
    initial = layer.placement.clone()
    world.engine.rebalance(seed=1)

    def wrapper(original: Callable[[int], list[int]]) -> Callable[[int], list[int]]:
        def slots_of(expert: int) -> list[int]:
            found = [slot for slot, held in enumerate(initial[layer.slots]) if held == expert]
            world.fire(found != original(expert))
            return found

        return slots_of

    with world.wrap("placement", site, wrapper):
        yield


@fault(
    "expert-placement-reset",
    breaks="C13 C2",
    claimed_by="placement preserved-state weight-bytes weight-values exact-probe",
    seam="finish",
    topology=_BALANCED,
    met="W49",
    links=("https://github.com/vllm-project/vllm/pull/55228",),
)
def expert_placement_reset(world: World, site: str) -> Iterator[None]:
    """A sync sets the map of experts back to that of the start, and leaves the experts in place.

    Requests go to other experts than the router chose. Keep the map, or move the experts with it.
    """
    layers = [seam.owner for seam in world.seams()["placement"].values()]
    initial = [layer.placement.clone() for layer in layers]
    world.engine.rebalance(seed=1)

    def wrapper(original: Callable[[], Any]) -> Callable[[], Any]:
        def finish() -> Any:
            record = original()
            for layer, placement in zip(layers, initial, strict=True):
                world.fire(not torch.equal(layer.placement, placement))
                layer.placement.copy_(placement)
            return record

        return finish

    with world.wrap("finish", site, wrapper):
        yield
