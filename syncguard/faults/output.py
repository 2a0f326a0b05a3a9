"""Faults that break C6 with all weights right: what is served or reported is another policy."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from syncguard.faults.registry import fault
from syncguard.faults.tools import replace_tensor
from syncguard.faults.world import World
from syncguard.grids import dequantize, quantize

__all__ = [
    "activations_by_another_rule",
    "drawn_by_other_probabilities",
    "not_a_number_left_behind",
    "temperature_applied",
]

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
    "drawn-by-other-probabilities",
    breaks="C6",
    claimed_by="sampled-tokens",
    seam="generate",
    links=("https://github.com/vllm-project/vllm/issues/55005",),
)
def drawn_by_other_probabilities(world: World, site: str) -> Iterator[None]:
    """The sampler draws tokens from one distribution and tells the probabilities of another.

    Importance ratios are those of tokens that the policy would hardly ever sample. Real in vLLM on
    a CPU after drafts, where the temperature is memory that nothing has written. Ask tokens whether
    they follow what is told of them.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(prompts: Any, tokens: int, seed: int) -> Any:
            draw, words = np.random.default_rng(seed), max(map(max, prompts)) + 1
            longer = [[*each, *draw.integers(0, words, tokens).tolist()] for each in prompts]
            answers = original(longer, tokens=1, seed=seed)
            world.fire()
            return [(sequence[:-1], scores[:-1]) for sequence, scores in answers]

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
