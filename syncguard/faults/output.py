"""Faults that break C6 with all weights right: what is served or reported is another policy."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from syncguard.faults.registry import fault
from syncguard.faults.tools import replace_tensor
from syncguard.faults.world import World
from syncguard.grids import dequantize, quantize

__all__ = ["activations_by_another_rule", "not_a_number_left_behind", "temperature_applied"]

_TEMPERATURE = 1.25


@fault("temperature-applied", breaks="C6", claimed_by="paired-logprobs", seam="generate")
def temperature_applied(world: World, site: str) -> Iterator[None]:
    """The sampler reports log-probabilities after temperature, the learner computes them before.

    Importance ratios are off on every token, and no weight is. Ask the engine for raw
    log-probabilities.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            world.fire()
            answers = original(*args, **kwargs)
            return [(sequence, scores / _TEMPERATURE) for sequence, scores in answers]

        return generate

    with world.wrap("generate", site, wrapper):
        yield


@fault(
    "not-a-number-left-behind",
    breaks="C6",
    claimed_by="finite gross-divergence paired-logprobs",
    seam="generate",
)
def not_a_number_left_behind(world: World, site: str) -> Iterator[None]:
    """A NaN that an earlier forward left in the KV cache spreads to later requests.

    Zero times NaN is NaN in a masked product. Real in vLLM on a CPU after a forward on poisoned
    weights. Clear the cache after a NaN, or discard one request.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            answers = original(*args, **kwargs)
            for _, scores in answers:
                scores[len(scores) // 2 :] = float("nan")
            world.fire()
            return answers

        return generate

    with world.wrap("generate", site, wrapper):
        yield


@fault(
    "activations-by-another-rule",
    breaks="C6",
    claimed_by="random-probe",
    seam="kernel",
    sites=lambda site: site.endswith("_proj"),
)
def activations_by_another_rule(world: World, site: str) -> Iterator[None]:
    """A kernel rounds its activations by the floor rule, where large ones saturate.

    Weights and scales are right to the last byte, and one-hot rows round exactly by any rule. Run
    kernels on Gaussian rows, and compare with an emulation.
    """

    def by_floor(x: torch.Tensor) -> torch.Tensor:
        return dequantize(*quantize(x, rule="floor")).to(x.dtype)

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def compute(*args: Any, **kwargs: Any) -> Any:
            return original(*replace_tensor(world, args, by_floor), **kwargs)

        return compute

    with world.wrap("kernel", site, wrapper):
        yield
