"""Faults that break C3: what a kernel derived from the weights is not what they give now."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import fault
from syncguard.faults.tools import same_bytes, started_from
from syncguard.faults.world import World

__all__ = ["level_of_the_sync_before", "processed_flag", "repack_not_undone"]

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
    find = getattr(install.__self__, "_find", None)
    held: torch.Tensor | None = find(layer, name) if find else getattr(layer, name, None)
    return held


_STALE: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "stale-swizzled-scales": {
            "what": "A swizzled copy of the scales, made at load, is never rebuilt.",
            "shows": "Fresh elements meet old scales: garbage from the first step, KL 7. Rebuild "
            "the copy in place after each sync.",
            "sites": lambda site: site.endswith("scale_swizzled"),
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


def _register_stale(name: str) -> None:
    row = dict(_STALE[name])
    what, shows = row.pop("what"), row.pop("shows")

    def arm(world: World, site: str) -> Iterator[None]:
        yield from _held_back(world, site)

    arm.__doc__ = f"{what}\n\n{shows}"
    fault(name, breaks="C3", seam="storage", **row)(arm)


for _name in _STALE:
    _register_stale(_name)


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

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        del original  # an engine that has started has processed every layer once

        def return_at_once(layer: Any) -> None:
            del layer
            world.fire()

        return return_at_once

    with world.wrap("post_process", site, wrapper):
        yield


@fault(
    "hook-not-run-on-direct-path",
    breaks="C3",
    claimed_by=f"{_READABLE} paired-logprobs",
    seam="finish",
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

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        del original

        def no_hook(layer: Any) -> None:
            del layer
            world.fire()

        return no_hook

    with ExitStack() as stack:
        for path in world.seams()["post_process"]:
            stack.enter_context(world.wrap("post_process", path, wrapper))
        yield


_IN_PLACE: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "repack-not-undone": {
            "what": "An expert repack that keeps shape and dtype is not recognized as one.",
            "shows": "Checkpoint rows are written into the shuffled buffer and multiplied as if "
            "they were shuffled: relative error 1.74, KL 25 times its baseline, while the audit "
            "of parameters agrees on all of them. Never infer a layout from a shape.",
            "topology": {"expert_kernel": "shuffled", **_EXPERTS},
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


def _register_in_place(name: str) -> None:
    row = dict(_IN_PLACE[name])
    what, shows = row.pop("what"), row.pop("shows")

    def arm(world: World, site: str) -> Iterator[None]:
        yield from repack_not_undone(world, site)

    arm.__doc__ = f"{what}\n\n{shows}"
    fault(
        name,
        breaks="C3 C2",
        claimed_by=f"weight-bytes weight-values {_PROBES}",
        seam="post_process",
        sites=lambda site: site.endswith(".experts"),
        **row,
    )(arm)


def repack_not_undone(world: World, site: str) -> Iterator[None]:
    """Leave the rows of a layer in checkpoint order, in the buffer of a reordering kernel."""

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def as_they_came(layer: Any) -> None:
            came = {name: held.data.clone() for name, held in layer.named_parameters(recurse=False)}
            original(layer)
            for name, tensor in came.items():
                held = getattr(layer, name).data
                world.fire(not same_bytes(held, tensor))
                held.copy_(tensor)

        return as_they_came

    with world.wrap("post_process", site, wrapper):
        yield


for _name in _IN_PLACE:
    _register_in_place(_name)


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

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def twice(layer: Any) -> None:
            original(layer)
            world.fire()
            original(layer)

        return twice

    with world.wrap("post_process", site, wrapper):
        yield


@fault(
    "second-quantization-skipped",
    breaks="C3 C1",
    claimed_by="weight-bytes storage-identity re-derivation",
    seam="process",
    met="W85",
    links=("https://github.com/ROCm/vllm/pull/1239",),
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


_WITHIN: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "derived-scale-byte": {
            "change": lambda fresh: fresh.view(-1)[0].add_(1),
            "what": "One byte of the kernel's own copy of the scales is one too high.",
            "sites": lambda site: site.endswith("scale_swizzled"),
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
            "topology": {"intermediate": 96, "kv_heads": 1, "head_dim": 16},
            "sites": lambda site: "qkv_proj" in site and site.endswith("scale_swizzled"),
            "claimed_by": "re-derivation",
        },
    }
)


def _flip_last_bit(fresh: torch.Tensor) -> None:
    fresh[1, 1:2] = (fresh[1, 1:2].view(torch.int16) ^ 1).view(fresh.dtype)


def _fill_last(fresh: torch.Tensor, value: int) -> None:
    fresh.view(-1)[-1] = value


def _register_within(name: str) -> None:
    row = dict(_WITHIN[name])
    change, what = row.pop("change"), row.pop("what")

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

    arm.__doc__ = f"{what}\n\nDerive the copy again and compare, or probe the kernel with one-hot rows."
    fault(name, breaks="C3", seam="storage", **row)(arm)


for _name in _WITHIN:
    _register_within(_name)

