"""Faults that break C5: something is not written, is written twice, or is not folded back."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import fault
from syncguard.faults.tools import Item, exported, is_dry_run, same_bytes, sent
from syncguard.faults.world import World
from syncguard.observations import Loaded

__all__ = ["dropped", "folded_per_bucket", "frozen", "sent_in_place_of_another"]

_UNWRITTEN: Final = "weight-bytes weight-values"
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


def dropped(world: World, gone: Callable[[str], bool]) -> Any:
    """Leave names out of the export."""

    def drop(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            if gone(name):
                world.fire()
            else:
                yield name, tensor

    return exported(world, drop)


_DROPPED: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "weight-never-sent": {
            "gone": lambda site: lambda name: name == site,
            "at": sent(_any),
            "claimed_by": f"ledger {_UNWRITTEN}",
            "met": "W05",
            "links": ("https://github.com/vllm-project/vllm/pull/38746",),
            "what": "One weight never comes; where it is part of a fused parameter, nothing tells.",
            "shows": "The loader reports a fused name as loaded as soon as any shard came, and a "
            "layer that is short is processed anyway. Count by shard, not by parameter.",
        },
        "expert-group-never-sent": {
            "gone": lambda site: lambda name: _in_expert(name) == site,
            "at": _groups,
            "topology": _EXPERTS,
            "claimed_by": f"ledger {_UNWRITTEN} exact-probe random-probe",
            "met": "W35",
            "links": ("https://github.com/NovaSky-AI/SkyRL/pull/1471",),
            "what": "A grouped tensor of experts, split over buckets, is never produced.",
            "shows": "The exporter emits a group only if all of its parts are asked for in one "
            "call. The experts stay as they were. Compare the names produced with the manifest.",
        },
        "cache-scales-never-sent": {
            "gone": lambda site: lambda name: name.endswith(("k_scale", "v_scale")),
            "topology": {"kv_scales": True},
            "claimed_by": f"ledger {_UNWRITTEN}",
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


def _register_dropped(name: str) -> None:
    row = dict(_DROPPED[name])
    gone, what, shows = row.pop("gone"), row.pop("what"), row.pop("shows")

    def arm(world: World, site: str) -> Iterator[None]:
        with dropped(world, gone(site)):
            yield

    arm.__doc__ = f"{what}\n\n{shows}"
    fault(name, breaks="C5", seam="export", **row)(arm)


for _name in _DROPPED:
    _register_dropped(_name)


@fault(
    "sent-in-place-of-another",
    breaks="C5",
    claimed_by=f"ledger {_UNWRITTEN} exact-probe",
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
    claimed_by="session ledger",
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
    claimed_by="session",
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


def folded_per_bucket(world: World, site: str, *, opens_again: bool) -> Iterator[None]:
    """Complete every layer after each weight, with or without opening a new session.

    The fault sends weight by weight, which is healthy by itself: so each fused layer is split.
    """

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def send(bucket: Iterable[Item]) -> None:
            for item in bucket:
                original([item])
                world.fire()
                _complete(world.engine, opens_again=opens_again)

        return send

    with world.wrap("send", site, wrapper):
        yield


def _complete(engine: Any, *, opens_again: bool) -> None:
    transfer = engine.seams()["flush"]["engine"].owner
    flush = getattr(transfer, "flush", None) or transfer.finish_weight_update
    with torch.no_grad():
        flush()
        starts = getattr(transfer, "start_weight_update", None)
        if starts is not None:
            starts()
        elif opens_again:
            for receiver in engine.receivers:
                receiver.open()


@fault(
    "folded-without-last-mark",
    breaks="C5",
    claimed_by=f"{_UNWRITTEN} exact-probe random-probe paired-logprobs",
    seam="send",
    met="F7",
)
def folded_without_last_mark(world: World, site: str) -> Iterator[None]:
    """Staging ends with each bucket, for want of a mark on the last one.

    A layer that is split over two buckets is folded half-written, and its second half is dropped.
    Mark the last bucket, and complete the rest only then.
    """
    yield from folded_per_bucket(world, site, opens_again=False)


@fault(
    "session-per-bucket",
    breaks="C5 C3",
    claimed_by=f"{_UNWRITTEN} exact-probe random-probe paired-logprobs",
    seam="send",
    met="W02",
    links=(
        "https://github.com/NovaSky-AI/SkyRL/pull/1737",
        "https://github.com/NovaSky-AI/SkyRL/pull/1685",
    ),
)
def session_per_bucket(world: World, site: str) -> Iterator[None]:
    """Every bucket has a session of its own: begin and finish once per bucket, not per sync.

    A layer that is split over two is processed from half-filled memory each time. Open one
    session per sync.
    """
    yield from folded_per_bucket(world, site, opens_again=True)


def _halves(world: World) -> list[str]:
    return sent(lambda name, tensor: name.endswith("gate_proj.weight"))(world)


@fault(
    "halves-kept-for-one-call",
    breaks="C5",
    claimed_by=f"ledger {_UNWRITTEN} exact-probe random-probe",
    seam="send",
    met="W34",
    links=(
        "https://github.com/sgl-project/sglang/pull/38298",
        "https://github.com/sgl-project/sglang/issues/14178",
    ),
    at=_halves,
)
def halves_kept_for_one_call(world: World, site: str) -> Iterator[None]:
    """A fused tensor is written only if both of its halves come in one call.

    The first half waits in a dictionary of that call. Fine with large buckets; with a boundary
    between the halves both are dropped: KL 1.5 instead of 0.001. The size of buckets must not
    matter.
    """
    pair = {site, site.replace("gate_proj", "up_proj")}

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def send(bucket: Iterable[Item]) -> None:
            rest = [item for item in bucket if item[0] not in pair]
            world.fire(len(rest) < len(list(bucket)))
            original(rest)

        return send

    with world.wrap("send", "engine", wrapper):
        yield


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


def frozen(world: World, site: str, names: Callable[[str], bool]) -> Iterator[None]:
    """Leave some tensors of a layer as they were before the sync."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def fold(layer: Any, kept: Any) -> None:
            before = kept if isinstance(kept, Mapping) else {}
            old = {name: held.data.clone() for name, held in before.items() if names(name)}
            original(layer, kept)
            for name, tensor in old.items():
                held = getattr(layer, name).data
                world.fire(not same_bytes(held, tensor))
                held.copy_(tensor)

        return fold

    with world.wrap("fold", site, wrapper):
        yield


_FROZEN: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "buffers-not-loaded": {
            "names": lambda name: name in ("e_score_correction_bias", "k_scale", "v_scale"),
            "topology": {"kv_scales": True, **_EXPERTS},
            "sites": lambda site: site.endswith((".gate", ".attn")),
            "met": "W23",
            "links": ("https://github.com/verl-project/verl/pull/5801",),
            "what": "Loading walks parameters; trained buffers of the state dict are skipped.",
            "shows": "A router's bias is frozen as it was at the start. Expect parameters and "
            "persistent buffers.",
        },
        "sinks-written-bare": {
            "names": lambda name: name == "sinks",
            "topology": {"sinks": True},
            "sites": lambda site: site.endswith(".attn"),
            "met": "W83",
            "links": (
                "https://github.com/vllm-project/vllm/pull/57798",
                "https://github.com/vllm-project/vllm/pull/57799",
            ),
            "what": "Attention sinks are written by a bare copy, past the parameter's loader.",
            "shows": "A layer-wise reload does not see the write, and puts the old sinks back. Load "
            "through ``weight_loader``.",
        },
    }
)


def _register_frozen(name: str) -> None:
    row = dict(_FROZEN[name])
    names, what, shows = row.pop("names"), row.pop("what"), row.pop("shows")

    def arm(world: World, site: str) -> Iterator[None]:
        yield from frozen(world, site, names)

    arm.__doc__ = f"{what}\n\n{shows}"
    fault(name, breaks="C5", claimed_by=f"{_UNWRITTEN} poison-coverage", seam="fold", **row)(arm)


for _name in _FROZEN:
    _register_frozen(_name)


def _unrouted(world: World, site: str, names: Callable[[str], bool]) -> Iterator[None]:
    """Send some names to no parameter of a rank."""

    def wrapper(original: Callable[[str], Any]) -> Callable[[str], Any]:
        def route(name: str) -> Any:
            found = original(name)
            if names(name) and found:
                world.fire()
                return []
            return found

        return route

    with world.wrap("route", site, wrapper):
        yield


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
            "what": "The update goes to the target model only; the draft beside it is never updated.",
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
            "topology": {"ranks": 2, "layers": 1},
            "what": "One rank takes no weight at all.",
            "shows": "Its share of every layer stays old. Compare each rank's share.",
        },
        "replica-not-updated": {
            "names": lambda name: True,
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


def _register_unrouted(name: str) -> None:
    row = dict(_UNROUTED[name])
    names, what, shows = row.pop("names"), row.pop("what"), row.pop("shows")

    def arm(world: World, site: str) -> Iterator[None]:
        yield from _unrouted(world, site, names)

    arm.__doc__ = f"{what}\n\n{shows}"
    claims = f"ledger {_UNWRITTEN} poison-coverage exact-probe"
    fault(name, breaks="C5", claimed_by=claims, seam="route", **row)(arm)


for _name in _UNROUTED:
    _register_unrouted(_name)


_LOADERS: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "loader-lost": {
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
            "met": "W71",
            "links": ("https://github.com/vllm-project/vllm/issues/28606",),
            "what": "A quantized model is reloaded through the loader of an unquantized one.",
            "shows": "Shapes differ where counts agree. Restore the format for loading first.",
        },
    }
)


def _register_loader(name: str) -> None:
    row = dict(_LOADERS[name])
    what, shows = row.pop("what"), row.pop("shows")

    def arm(world: World, site: str) -> Iterator[None]:
        def wrapper(original: Callable[[], Any]) -> Callable[[], Any]:
            def stage() -> Any:
                staged = original()
                for tensor in staged.values():
                    if name == "loader-lost":
                        del tensor.weight_loader
                    else:
                        tensor.data = tensor.data.view(-1)
                    world.fire()
                return staged

            return stage

        with world.wrap("stage", site, wrapper):
            yield

    arm.__doc__ = f"{what}\n\n{shows}"
    fault(
        name,
        breaks="C5",
        claimed_by="session",
        seam="stage",
        sites=lambda site: site.endswith(("qkv_proj", "gate_up_proj")),
        silent=False,
        **row,
    )(arm)


for _name in _LOADERS:
    _register_loader(_name)


@fault(
    "hook-of-a-wrapper-fails",
    breaks="C5",
    claimed_by="session",
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


@fault(
    "completed-only-at-the-end",
    breaks="C5",
    claimed_by="session",
    seam="load",
    met="W05",
    links=("https://github.com/vllm-project/vllm/pull/38746",),
)
def completed_only_at_the_end(world: World, site: str) -> Iterator[None]:
    """A layer is never complete by its count, since one of its parts counts under two modules.

    The end of the session processes what is left, this time with everything there; it would do so
    just as well without. Count by place.
    """
    held: list[Callable[[], object]] = []
    name_of_part = next(
        name for name, _ in world.learner.weights() if name.endswith("v_proj.weight")
    )

    def late(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any) -> Any:
            if isinstance(args[0], str):  # one weight of one rank; tells what it wrote
                if args[0] != name_of_part:
                    return original(*args)
                held.append(lambda: original(*args))
                return _promised(original.__self__, *args)
            return original(_without(args[0]))

        def _without(items: Iterable[Item]) -> Iterator[Item]:
            for item in items:
                if item[0] == name_of_part:
                    held.append(lambda kept=item: original([kept]))
                else:
                    yield item

        return load

    def deliver(original: Callable[[], None]) -> Callable[[], None]:
        def flush() -> None:
            while held:
                held.pop()()
                world.fire()
            original()

        return flush

    with world.wrap("load", site, late), world.wrap("flush", "engine", deliver):
        yield


def _promised(receiver: Any, name: str, tensor: torch.Tensor, bucket: int) -> list[Loaded]:
    """What a rank of the stub tells of a weight that it takes."""
    return [
        Loaded(
            weight=name,
            parameter=f"{layer.path}.{shard.parameter}",
            shard=shard.shard,
            expert=-1,
            numel=tensor.numel(),
            bucket=bucket,
            rank=receiver.rank.number,
        )
        for layer, shard in receiver.route(name)
    ]
