"""Faults that break C3: what a kernel derived from the weights is not what they give now."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import Arm, fault, fault_table
from syncguard.faults.tools import same_bytes
from syncguard.faults.world import World

__all__ = ["hook_not_run_on_direct_path", "processed_flag", "stale_dequantized_cache"]

_PROBES: Final = "exact-probe random-probe"
_READABLE: Final = f"{_PROBES} re-derivation"
_EXACT: Final = "exact-probe re-derivation"
"""What sees a copy that lags by a step of 1e-6 too, where a random probe can be blind."""
_EXPERTS: Final = {"layers": 1, "experts": 4}


def _held_back(world: World, site: str) -> Iterator[None]:
    """Whatever post-processing derives keeps its old content."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def keep_old(layer: Any, name: str, fresh: torch.Tensor) -> None:
            held = _installed(original, layer, name)
            if held is None or held.shape != fresh.shape:
                original(layer, name, fresh)
                return
            world.fire(not same_bytes(held.to(fresh.dtype), fresh))

        return keep_old

    with world.wrap("storage", site, wrapper):
        yield


def _installed(install: Any, layer: Any, name: str) -> torch.Tensor | None:
    """What a kernel holds under a name: where its own look-up finds it, else on the layer."""
    find = getattr(getattr(install, "__self__", None), "_find", None)
    held: torch.Tensor | None = find(layer, name) if find else getattr(layer, name, None)
    return held


_STALE: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "stale-swizzled-scales": {
            "what": "A swizzled copy of the scales, made at load, is never rebuilt.",
            "shows": "Fresh elements meet old scales: garbage from the first step, KL 7. Rebuild "
            "the copy in place after each sync.",
            "sites": lambda site: site.endswith("_swizzled"),
            "met": "F3 W14",
            "links": ("https://github.com/verl-project/verl/pull/7519",),
            "claimed_by": _READABLE,
        },
        "stale-shuffled-twin": {
            "what": "A shuffled twin of the weights, made at load, is not refreshed.",
            "shows": "The kernel reads only the twin, and serves the old policy. Met with the "
            "twins of NVFP4 elements and of their scales.",
            "topology": {"linear_kernel": "twin", "expert_kernel": "twin", **_EXPERTS},
            "sites": lambda site: site.endswith("_twin"),
            "met": "W28",
            "links": (
                "https://github.com/sgl-project/sglang/pull/18085",
                "https://github.com/sgl-project/sglang/pull/22204",
            ),
            "claimed_by": _EXACT,
            "late": True,
        },
        "stale-second-level-scale": {
            "what": "The second-level scales that were derived at load are not refreshed.",
            "shows": "Met with the derived alphas of NVFP4. Derive each again from the primary "
            "scales and compare.",
            "topology": {"linear_kernel": "two_level", "expert_kernel": "two_level", **_EXPERTS},
            "sites": lambda site: site.endswith(("_relative", "_level")),
            "met": "W28",
            "links": ("https://github.com/sgl-project/sglang/pull/18085",),
            "claimed_by": _READABLE,
        },
        "stale-absorbed-product": {
            "what": "The products that latent attention absorbed at load are not refreshed.",
            "shows": "w_kc and w_vc answer with the old keys and values.",
            "topology": {"attention": "mla", "kv_heads": 4},
            "sites": lambda site: site.endswith(("w_kc", "w_vc")),
            "met": "W07",
            "links": (
                "https://github.com/sgl-project/sglang/pull/4961",
                "https://github.com/sgl-project/sglang/pull/6265",
            ),
            "claimed_by": _EXACT,
            "late": True,
        },
        "stale-packed-head": {
            "what": "The head's packed copy, which only a closure holds, is not made again.",
            "shows": "The parameter is new and so is its checksum; the head's output is old.",
            "sites": lambda site: site.startswith("lm_head"),
            "claimed_by": "exact-probe",
            "late": True,
        },
        "stale-tied-head": {
            "what": "A tied head computes with a packed copy that a sync does not make again.",
            "shows": "The embedding is new, the head's own copy old; a checksum of parameters "
            "agrees. Real in vLLM on a CPU. Probe the head with one-hot rows.",
            "topology": {"tied": True},
            "sites": lambda site: site.startswith("lm_head"),
            "met": "W82",
            "links": (
                "https://github.com/pytorch/torchtitan/pull/2402",
                "https://github.com/PrimeIntellect-ai/prime-rl/pull/2823",
            ),
            "claimed_by": "exact-probe",
            "late": True,
        },
    }
)


fault_table(_STALE, lambda: _held_back, breaks="C3", seam="storage")


@fault(
    "stale-dequantized-cache",
    breaks="C3",
    claimed_by=_EXACT,
    seam="process",
    topology={"linear_kernel": "cached", "expert_kernel": "cached", **_EXPERTS},
    sites=lambda site: site.endswith(("_proj", ".experts")),
    late=True,
)
def stale_dequantized_cache(world: World, site: str) -> Iterator[None]:
    """A dequantized copy that the kernel makes at first use is not made again.

    No load makes it, so no load rebuilds it. Drop it, or fill it in place, after each sync.
    """

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def keep_old(layer: Any) -> None:
            caches = layer.quant_method.kernel.caches
            before = {name: held.clone() for name, held in caches.items()}
            original(layer)
            for name, held in before.items():
                world.fire(not same_bytes(caches[name], held))
                caches[name].copy_(held)

        return keep_old

    with world.wrap("process", site, wrapper):
        yield


@fault(
    "processed-flag",
    breaks="C3",
    claimed_by=_READABLE,
    seam="post_process",
    met="F5",
    sites=lambda site: site != "lm_head",
)
def processed_flag(world: World, site: str) -> Iterator[None]:
    """A flag that says "already processed" makes every later post-processing return at once.

    The first load set it, and the code that reloads does not know it. Clear it when a sync
    begins.
    """
    # An engine that has started has processed every layer once.
    with world.wrap("post_process", site, _skipped(world)):
        yield


@fault(
    "hook-not-run-on-direct-path",
    breaks="C3",
    claimed_by=f"{_READABLE} paired-logprobs",
    seam="finish",
    beside="post_process",
    met="W32",
    links=(
        "https://github.com/sgl-project/sglang/pull/31937",
        "https://github.com/radixark/miles/pull/890",
    ),
)
def hook_not_run_on_direct_path(world: World, site: str) -> Iterator[None]:
    """The direct path of a sync writes parameters and runs no post-load hook at all.

    Only the loader's entry point runs it. Run post-processing on each path, and probe the kernels.
    """
    with ExitStack() as stack:
        for path in world.seams()["post_process"]:
            stack.enter_context(world.wrap("post_process", path, _skipped(world)))
        yield


def _skipped(world: World) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Leave out whatever a callable does."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        del original

        def skip(*args: Any, **kwargs: Any) -> None:
            del args, kwargs
            world.fire()

        return skip

    return wrapper


_TODO: Final = "Derive the copy again and compare, or probe the kernel with one-hot rows."

_WITHIN: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "derived-scale-byte": {
            "change": lambda fresh: fresh.view(-1)[0].add_(1),
            "what": "One byte of the kernel's own copy of the scales is one too high.",
            "sites": lambda site: site.endswith("_swizzled"),
            "claimed_by": _READABLE,
        },
        "packed-element-bit": {
            "change": lambda fresh: _flip_last_bit(fresh),
            "what": "The last bit of one element of the head's packed copy differs.",
            "sites": lambda site: site.startswith("lm_head"),
            "claimed_by": "exact-probe",
        },
        "swizzle-padding-unset": {
            "change": lambda fresh: _fill_last(fresh, 0xFF),
            "what": "The padding of a swizzled copy holds what the memory held.",
            "at": lambda world: _padded(world),
            "claimed_by": "re-derivation",
        },
    }
)


def _padded(world: World) -> list[str]:
    """Swizzled copies that are larger than the scales that they are made of."""
    nbytes = {row.path: row.nbytes for row in world.engine.storage()}
    sites = [site for site in world.seams()["storage"] if site.endswith("_swizzled")]
    return [site for site in sites if nbytes[site] > nbytes[site.removesuffix("_swizzled")]]


def _flip_last_bit(fresh: torch.Tensor) -> None:
    fresh[1, 1:2] = (fresh[1, 1:2].view(torch.int16) ^ 1).view(fresh.dtype)


def _fill_last(fresh: torch.Tensor, value: int) -> None:
    fresh.view(-1)[-1] = value


def _changing(change: Callable[[torch.Tensor], object]) -> Arm:
    def arm(world: World, site: str) -> Iterator[None]:
        def wrapper(original: Callable[..., None]) -> Callable[..., None]:
            def install(layer: Any, name: str, fresh: torch.Tensor) -> None:
                other = fresh.clone()
                change(other)
                world.fire(not same_bytes(fresh, other))
                original(layer, name, other)

            return install

        with world.wrap("storage", site, wrapper):
            yield

    return arm


fault_table(_WITHIN, _changing, breaks="C3", seam="storage", shows=_TODO)
