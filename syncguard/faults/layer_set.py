"""Faults that break C1: other layers are quantized than the learner runs in low precision."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from syncguard.faults.registry import fault
from syncguard.faults.tools import Item, exported
from syncguard.faults.world import World

__all__ = ["head_quantized", "head_served_dequantized", "router_quantized"]

_TABLES: Final = ("lm_head", "embed_tokens")
_HEAD: Final = "lm_head.weight"
_WRONG_GRID: Final = "layer-set weight-bytes exact-probe random-probe"


def _excluding(
    world: World, site: str, decide: Callable[[str, bool], bool]
) -> AbstractContextManager[None]:
    """Decide again which modules stay unquantized; it fires when the answer is another."""

    def wrapper(original: Callable[[str], bool]) -> Callable[[str], bool]:
        def is_excluded(module: str) -> bool:
            before = original(module)
            after = decide(module, before)
            world.fire(after != before)
            return after

        return is_excluded

    return world.wrap("exclusion", site, wrapper)


@fault(
    "head-quantized",
    breaks="C1 C6",
    claimed_by=_WRONG_GRID,
    seam="exclusion",
    met="F1",
    sites=lambda site: site == "engine",
)
def head_quantized(world: World, site: str) -> Iterator[None]:
    """The sampler quantizes head and embedding, which the learner keeps in its dtype.

    The published run had NaN logits, every response at the length cap, reward 0 and exit code 0.
    Name both in the engine's exclusions, and ask the live modules whether it helped.
    """
    with _excluding(world, site, lambda module, before: before and not module.endswith(_TABLES)):
        yield


@fault(
    "router-quantized",
    breaks="C1",
    claimed_by=_WRONG_GRID,
    seam="exclusion",
    topology={"experts": 4},
    sites=lambda site: site == "engine",
)
def router_quantized(world: World, site: str) -> Iterator[None]:
    """The sampler quantizes the routers of its expert layers.

    Engines that quantize at load do so unless the router is named; outputs differ little, the
    choice of experts for a few tokens. Exclude the router by its full name.
    """
    with _excluding(world, site, lambda module, before: before and not module.endswith(".gate")):
        yield


@fault(
    "router-exclusion-by-substring",
    breaks="C1",
    claimed_by="layer-set weight-bytes exact-probe random-probe",
    seam="exclusion",
    met="F2 W16",
    links=("https://github.com/verl-project/verl/pull/7519",),
    sites=lambda site: site == "engine",
)
def router_exclusion_by_substring(world: World, site: str) -> Iterator[None]:
    """The exclusion of a router is matched as a substring, and so excludes gate_up_proj too.

    ``model.layers.N.mlp.gate``, given for every layer, is part of the name of the dense
    ``mlp.gate_up_proj``. The sampler computes these in bf16; only a small offset of KL shows it.
    Compare the live layers of both sides; end the pattern with a dollar sign.
    """

    def by_substring(module: str, before: bool) -> bool:
        return before or re.search(r"model\.layers\.\d+\.mlp\.gate", module) is not None

    with _excluding(world, site, by_substring):
        yield


@fault(
    "learner-exclusion-with-bare-dot",
    breaks="C1",
    claimed_by="layer-set weight-bytes exact-probe random-probe",
    seam="exclusion",
    met="W17",
    links=("https://github.com/PrimeIntellect-ai/prime-rl/pull/2442",),
    sites=lambda site: site == "learner",
)
def learner_exclusion_with_bare_dot(world: World, site: str) -> Iterator[None]:
    """An unescaped dot in the learner's exclusion keeps dense gate projections in bf16.

    ``mlp.gate.`` as a regular expression matches ``mlp.gate_proj``: the sampler quantizes it, the
    trainer does not, and the mismatch of log-probabilities is a little larger than it should be.
    Compare the layer sets by name; escape the dots.
    """
    pattern = re.compile(r"mlp.gate.")
    with _excluding(world, site, lambda module, before: before or bool(pattern.search(module))):
        yield


@fault(
    "head-served-dequantized",
    breaks="C1",
    claimed_by="layer-set",
    seam="exclusion",
    topology={"head_kernel": "freed"},
    sites=lambda site: site == "learner",
)
def head_served_dequantized(world: World, site: str) -> Iterator[None]:
    """The learner runs its head in low precision, the sampler multiplies its values in bf16.

    The exporter dequantizes for an engine that leaves the head unquantized: all values agree, and
    only activations are rounded on one side and not on the other. Compare the layer sets.
    """

    def dequantizing(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            yield name, world.learner.dequantized(name) if name == _HEAD else tensor

    def keep_head(module: str, before: bool) -> bool:
        return before and module != "lm_head"

    with _excluding(world, site, keep_head), exported(world, dequantizing):
        yield
