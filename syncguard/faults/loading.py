"""Faults that break C5 inside an engine: what arrived is not written, or not where it is read."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import Arm, fault, fault_table
from syncguard.faults.tools import folded_into, is_dry_run, same_bytes
from syncguard.faults.world import World

__all__ = ["hook_of_a_wrapper_fails", "written_into_a_copy"]

_UNWRITTEN: Final = "weight-bytes weight-values"
_BROKEN_OFF: Final = "session ledger"
_EXPERTS: Final = {"layers": 1, "experts": 4}


@fault(
    "written-into-a-copy",
    breaks="C5 C4",
    claimed_by=_UNWRITTEN,
    seam="loader",
    met="W79",
    links=(
        "https://github.com/pytorch/torchtitan/pull/3794",
        "https://github.com/pytorch/torchtitan/pull/2402",
    ),
)
def written_into_a_copy(world: World, site: str) -> Iterator[None]:
    """A loader fills a temporary copy: ``state_dict()`` split a fused tensor anew.

    Rewards do not change from step to step. Look at live storage, not at what was returned.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(destination: torch.Tensor, *rest: Any) -> Any:
            if is_dry_run(destination):
                return original(destination, *rest)
            world.fire()
            copy = destination.data.clone()
            for name, value in vars(destination).items():
                setattr(copy, name, value)
            copy.__class__ = destination.__class__
            return original(copy, *rest)

        return write

    with world.wrap("loader", site, wrapper):
        yield


def _freezing(names: tuple[str, ...]) -> Arm:
    """Leave some tensors of a layer as they were before the sync."""

    def arm(world: World, site: str) -> Iterator[None]:
        def wrapper(original: Callable[..., None]) -> Callable[..., None]:
            def fold(layer: Any, kept: Any) -> None:
                before = folded_into(kept)
                old = {name: before[name].data.clone() for name in names if name in before}
                original(layer, kept)
                for name, tensor in old.items():
                    held = getattr(layer, name).data
                    world.fire(not same_bytes(held, tensor))
                    held.copy_(tensor)

            return fold

        with world.wrap("fold", site, wrapper):
            yield

    return arm


_FROZEN: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "buffers-not-loaded": {
            "names": ("e_score_correction_bias", "k_scale", "v_scale"),
            "topology": {"kv_scales": True, **_EXPERTS},
            "sites": lambda site: site.endswith((".gate", ".attn")),
            "met": "W23",
            "links": ("https://github.com/verl-project/verl/pull/5801",),
            "what": "Loading walks parameters; trained buffers of the state dict are skipped.",
            "shows": "A router's bias is frozen as it was at the start. Expect parameters and "
            "persistent buffers.",
        },
        "sinks-written-bare": {
            "names": ("sinks",),
            "topology": {"sinks": True},
            "sites": lambda site: site.endswith(".attn"),
            "met": "W83",
            "links": (
                "https://github.com/vllm-project/vllm/pull/57798",
                "https://github.com/vllm-project/vllm/pull/57799",
            ),
            "what": "Attention sinks are written by a bare copy, past the parameter's loader.",
            "shows": "A layer-wise reload does not see the write, and puts the old sinks back. "
            "Load through ``weight_loader``.",
        },
    }
)


fault_table(
    _FROZEN,
    _freezing,
    breaks="C5",
    claimed_by=f"{_UNWRITTEN} poison-coverage",
    seam="fold",
)


def _unrouted(names: Callable[[str], bool]) -> Arm:
    """Send some names to no parameter of a rank."""

    def arm(world: World, site: str) -> Iterator[None]:
        def wrapper(original: Callable[[str], Any]) -> Callable[[str], Any]:
            def route(name: str) -> Any:
                found = original(name)
                lost = bool(found) and names(name)
                world.fire(lost)
                return [] if lost else found

            return route

        with world.wrap("route", site, wrapper):
            yield

    return arm


_NOWHERE: Final = f"ledger {_UNWRITTEN} poison-coverage exact-probe"
_UNROUTED: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "draft-not-updated": {
            "names": lambda name: name.startswith("mtp."),
            "topology": {"draft": "synced", "layers": 1},
            "met": "W52",
            "links": (
                "https://github.com/sgl-project/sglang/issues/27718",
                "https://github.com/vllm-project/vllm/pull/46725",
            ),
            "what": "The update goes to the target model only; the draft beside it is never told.",
            "shows": "Acceptance fell from 59 % to about 0 and throughput by a quarter. List all "
            "modules that the engine owns; each is synced, or declared frozen.",
        },
        "absorbed-source-freed": {
            "names": lambda name: name.endswith("kv_b_proj.weight"),
            "topology": {"attention": "mla", "kv_heads": 4},
            "met": "W08",
            "links": ("https://github.com/vllm-project/vllm-ascend/pull/16717",),
            "what": "The source of an absorbed product was freed: an update has nowhere to land.",
            "shows": "The old policy keeps answering. Every name of the learner must have a "
            "destination.",
        },
        "rank-not-updated": {
            "names": lambda name: True,
            "claimed_by": f"{_NOWHERE} ranks",
            "topology": {"ranks": 2, "layers": 1},
            "what": "One rank takes no weight at all.",
            "shows": "Its share of every layer stays old. Compare each rank's share.",
        },
        "replica-not-updated": {
            "names": lambda name: True,
            "claimed_by": f"{_NOWHERE} ranks",
            "topology": {"replicas": 2, "layers": 1},
            "what": "One replica is left out of a sync.",
            "shows": "Half of the requests are answered by the old policy. Compare each replica.",
        },
        "shared-expert-taken-for-an-expert": {
            "names": lambda name: ".shared_experts." in name,
            "topology": {"ranks": 2, "shared_expert": True, **_EXPERTS},
            "sites": lambda site: site == "rank1",
            "met": "W95",
            "links": ("https://github.com/radixark/miles/pull/1730",),
            "what": "The substring ``.experts.`` also matches shared experts: one rank holds them.",
            "shows": "Other ranks get nothing, or the wrong tensor. Match whole names.",
        },
    }
)


fault_table(_UNROUTED, _unrouted, breaks="C5", claimed_by=_NOWHERE, seam="route")


@fault(
    "rank-deaf",
    breaks="C5",
    claimed_by=f"{_NOWHERE} ranks",
    seam="receive",
    topology={"ranks": 2, "layers": 1},
)
def rank_deaf(world: World, site: str) -> Iterator[None]:
    """One rank acknowledges every bucket and loads none of them.

    Whoever sends hears of no error, and its share of every layer stays old. Let each rank tell
    what it has written, and compare each one's share.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        del original

        def receive(*bucket: Any, **named: Any) -> list[Any]:
            del bucket, named
            world.fire()
            return []  # what it has written, where that is asked for

        return receive

    with world.wrap("receive", site, wrapper):
        yield


def _without_loader(tensor: torch.Tensor) -> None:
    del vars(tensor)["weight_loader"]


def _flattened(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(-1)


_LOADERS: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "loader-lost": {
            "change": _without_loader,
            "met": "W70",
            "links": (
                "https://github.com/vllm-project/vllm/issues/17915",
                "https://github.com/vllm-project/vllm/issues/14266",
            ),
            "what": "A parameter was wrapped anew after loading and has lost its loader.",
            "shows": "The default loader refuses a shard's shape, or there is an AttributeError. "
            "Before a sync, ask each destination for its loader.",
        },
        "loader-of-another-shape": {
            "change": _flattened,
            "met": "W71",
            "links": ("https://github.com/vllm-project/vllm/issues/28606",),
            "what": "A quantized model is reloaded through the loader of an unquantized one.",
            "shows": "Shapes differ where counts agree. Restore the format for loading first.",
        },
    }
)


def _staging(change: Callable[[torch.Tensor], None]) -> Arm:
    def arm(world: World, site: str) -> Iterator[None]:
        def wrapper(original: Callable[[], Any]) -> Callable[[], Any]:
            def stage() -> Any:
                staged = original()
                for tensor in staged.values():
                    change(tensor)
                    world.fire()
                return staged

            return stage

        with world.wrap("stage", site, wrapper):
            yield

    return arm


fault_table(
    _LOADERS,
    _staging,
    breaks="C5",
    claimed_by=_BROKEN_OFF,
    seam="stage",
    sites=lambda site: site.endswith(("qkv_proj", "gate_up_proj")),
    silent=False,
)


@fault(
    "hook-of-a-wrapper-fails",
    breaks="C5",
    claimed_by=_BROKEN_OFF,
    seam="process",
    met="W89",
    links=("https://github.com/sgl-project/sglang/pull/31524",),
    sites=lambda site: site.endswith("_proj"),
    silent=False,
)
def hook_of_a_wrapper_fails(world: World, site: str) -> Iterator[None]:
    """The post-load hook visits an adapter's wrapper, which has none of the base's parameters.

    The engine crashes in the middle of an update. Try the hook before the first sync.
    """

    def wrapper(original: Callable[[Any], None]) -> Callable[[Any], None]:
        del original

        def visit(layer: Any) -> None:
            world.fire()
            raise AttributeError(f"{type(layer).__name__} object has no attribute 'w13_packed'")

        return visit

    with world.wrap("process", site, wrapper):
        yield
