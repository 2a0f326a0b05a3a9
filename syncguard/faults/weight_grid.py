"""Faults that break C2 on the way: what is sent or written is not the learner's weight."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import Arm, fault, fault_table
from syncguard.faults.tools import (
    Item,
    exported,
    is_dry_run,
    matrices,
    octets,
    rewriting,
    same_bytes,
    sent,
    started_from,
)
from syncguard.faults.world import World

__all__ = ["gate_and_up_swapped", "shard_id_ignored"]

_WRITTEN: Final = "weight-bytes weight-values"
_WRONG: Final = f"exported-weights {_WRITTEN}"
_WRONG_MATRIX: Final = f"{_WRONG} exact-probe"
_SERIALIZED: Final = {"wire": "mxfp8"}
_EXPERTS: Final = {"experts": 4, "layers": 1}


def _as_fp8(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float8_e4m3fn).to(tensor.dtype)


def _as_bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16).to(tensor.dtype)


def _first_row_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(-1, 0)


def _ignoring_strides(tensor: torch.Tensor) -> torch.Tensor:
    """What arrives if a transposed view is sent by its storage."""
    return tensor.t().contiguous().view(tensor.shape)


def _leftover(tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tensor.numel())
    noise = torch.randn(tensor.shape, generator=generator) * 0.05
    return noise.to(tensor.dtype)


def _may_lose_bits(name: str, tensor: torch.Tensor) -> bool:
    del name
    return tensor.ndim > 1 and tensor.dtype in (torch.bfloat16, torch.float32)


def _is_square(name: str, tensor: torch.Tensor) -> bool:
    return tensor.ndim > 1 and tensor.shape[0] == tensor.shape[1]


_CHANGED: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "rows-rolled": {
            "change": _first_row_last,
            "at": matrices,
            "what": "The rows of one weight are moved by one, as by a gather from the wrong rank.",
        },
        "square-matrix-transposed": {
            "change": lambda tensor: tensor.t().contiguous(),
            "at": sent(_is_square),
            "topology": {"experts": 4, "layers": 1, "expert_intermediate": 64, "hidden": 64},
            "met": "W77",
            "links": (
                "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3162",
                "https://github.com/modal-projects/training-gym/pull/100",
            ),
            "what": "The exporter transposes a square matrix once too often: no error is raised.",
            "shows": "Met with KL 13, reward 0 and gibberish.",
        },
        "strides-ignored": {
            "change": _ignoring_strides,
            "at": matrices,
            "met": "W91",
            "links": (
                "https://github.com/OpenRLHF/OpenRLHF/pull/1348",
                "https://github.com/modelscope/ms-swift/pull/10005",
            ),
            "what": "A tensor that is not contiguous travels in the order of its storage.",
        },
        "rounded-to-fp8": {
            "change": _as_fp8,
            "at": sent(_may_lose_bits),
            "what": "A weight passes a cast to E4M3 without a scale on its way.",
        },
        "router-bias-rounded": {
            "change": _as_bf16,
            "at": sent(lambda name, tensor: tensor.dtype == torch.float32),
            "topology": {**_EXPERTS, "correction_bias": True},
            "claimed_by": _WRONG,
            "met": "W22",
            "links": (
                "https://github.com/NVIDIA-NeMo/RL/pull/3540",
                "https://github.com/radixark/miles/pull/811",
            ),
            "what": "A float32 router bias is cast to the policy's bfloat16 on its way.",
            "shows": "Its values lie close together and far from zero: 238 became 8, and the "
            "choice of experts differs for most tokens. Ask that each cast be lossless.",
        },
        "unwritten-memory-sent": {
            "change": _leftover,
            "at": sent(lambda name, tensor: tensor.is_floating_point()),
            "claimed_by": _WRONG,
            "met": "W46",
            "links": ("https://github.com/lightseekorg/tokenspeed/issues/1373",),
            "what": "No transfer takes place, and what the receive buffer held is loaded.",
            "shows": "The call reports success and outputs do change, so to ask whether they "
            "changed is no check.",
        },
    }
)

_TODO: Final = "Compare fingerprints by name on both sides of the wire."


def _sending(change: Callable[[torch.Tensor], torch.Tensor]) -> Arm:
    def arm(world: World, site: str) -> Iterator[None]:
        with exported(world, rewriting(world, site, change)):
            yield

    return arm


fault_table(_CHANGED, _sending, shows=_TODO, breaks="C2", claimed_by=_WRONG_MATRIX, seam="export")


@fault(
    "rounded-to-fp16",
    breaks="C2",
    claimed_by=_WRONG_MATRIX,
    seam="export",
    at=lambda world: matrices(world) if hasattr(world.learner, "start_from") else (),
)
def rounded_to_fp16(world: World, site: str) -> Iterator[None]:
    """A weight passes a cast to float16 on its way, which has fewer small numbers.

    The checkpoint of this fault has a row of small numbers; ordinary ones come through unharmed.
    Compare fingerprints by name on both sides of the wire.
    """

    def with_small_row(name: str, tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        if name == site:
            changed[-1] *= 2.0**-16
        return changed

    def as_fp16(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(torch.float16).to(tensor.dtype)

    with (
        started_from(world, with_small_row),
        exported(world, rewriting(world, site, as_fp16)),
    ):
        yield


@fault(
    "gate-and-up-swapped",
    breaks="C2",
    claimed_by=f"{_WRONG_MATRIX} random-probe",
    seam="export",
    at=sent(lambda name, tensor: name.endswith("gate_proj.weight")),
)
def gate_and_up_swapped(world: World, site: str) -> Iterator[None]:
    """Gate and up projections are sent under each other's name.

    Shapes and counts agree. Compare fingerprints by name with the learner's.
    """
    other = site.replace("gate_proj", "up_proj")
    names = {site: other, other: site}

    def swap(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            world.fire(name in names)
            yield names.get(name, name), tensor

    with exported(world, swap):
        yield


@fault(
    "names-in-another-order",
    breaks="C2",
    claimed_by=f"{_WRONG_MATRIX} random-probe",
    seam="export",
    topology={"kv_scales": True, "layers": 1},
    met="W37",
    links=("https://github.com/NovaSky-AI/SkyRL/pull/1816",),
)
def names_in_another_order(world: World, site: str) -> Iterator[None]:
    """The payload is grouped by dtype, while names and shapes keep the model's order.

    Byte totals agree; from the first float32 tensor on every tensor lands under another name.
    Coherent-looking garbage came out. Compare fingerprints by name on both sides of the wire.
    """

    def regroup(items: Iterator[Item]) -> Iterator[Item]:
        listed = list(items)
        dtypes = list(dict.fromkeys(tensor.dtype for _, tensor in listed))
        grouped = sorted(listed, key=lambda item: dtypes.index(item[1].dtype))
        payload = torch.cat([octets(tensor).view(-1) for _, tensor in grouped])
        first = 0
        for name, tensor in listed:
            cut = payload[first : first + tensor.nbytes].clone()
            first += tensor.nbytes
            got = cut.view(tensor.dtype).view(tensor.shape)
            world.fire(not same_bytes(tensor, got))
            yield name, got

    with exported(world, regroup):
        yield


def _is_scale(name: str, tensor: torch.Tensor) -> bool:
    return name.endswith("_scale") and tensor.dtype == torch.uint8


@fault(
    "scale-names-of-another-layer",
    breaks="C2 C5",
    claimed_by=f"ledger session {_WRONG_MATRIX} random-probe",
    seam="export",
    topology=_SERIALIZED,
    at=sent(_is_scale),
    sites=lambda site: ".layers.1." in site,
    met="W76",
    links=("https://github.com/ISEEKYAN/Megatron-LM/pull/191",),
)
def scale_names_of_another_layer(world: World, site: str) -> Iterator[None]:
    """The scales of a later pipeline stage go out under the names of the first one.

    They are keyed by global layer names, and the exporter maps local to global once more. Ask
    that names on the wire and the learner's map one to one.
    """

    def remap(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            world.fire(name == site)
            yield (name.replace(".layers.1.", ".layers.0.") if name == site else name), tensor

    with exported(world, remap):
        yield


@fault(
    "unquantized-weight-sent",
    breaks="C2 C1",
    claimed_by=f"ledger session {_WRONG_MATRIX} random-probe",
    seam="export",
    topology=_SERIALIZED,
    at=sent(lambda name, tensor: tensor.dtype == torch.float8_e4m3fn),
    met="W19",
    links=("https://github.com/THUDM/slime/pull/1624",),
    silent=False,
)
def unquantized_weight_sent(world: World, site: str) -> Iterator[None]:
    """One of two export paths does not call the quantizer: raw values, and no scales.

    The engine casts them to its elements' type, and its scales are what the memory held. Compare
    names and dtypes on the wire with what the engine declares.
    """

    def raw(items: Iterator[Item]) -> Iterator[Item]:
        for name, tensor in items:
            if name == f"{site}_scale":
                world.fire()
                continue
            yield name, (world.learner.dequantized(site) if name == site else tensor)

    with exported(world, raw):
        yield


@fault(
    "shard-id-ignored",
    breaks="C2 C5",
    claimed_by=f"{_WRITTEN} exact-probe random-probe",
    seam="loader",
    met="W74",
    links=("https://github.com/NVIDIA-NeMo/RL/pull/2983",),
    sites=lambda site: site.endswith(("[up]", "gate_up_proj.weight")),
)
def shard_id_ignored(world: World, site: str) -> Iterator[None]:
    """The loader of a fused parameter ignores the shard: up is written over gate.

    Met with the scales of w1 and w3, of which one was lost. Count writes by place, not by
    elements.
    """

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(destination: torch.Tensor, loaded: torch.Tensor, shard: Any, *rest: Any) -> Any:
            if hasattr(shard, "rows"):
                size = shard.rows.stop - shard.rows.start
                first = replace(shard, rows=slice(0, size))
                world.fire(first != shard)
            else:
                first = 0
                world.fire(first != shard and not is_dry_run(destination))
            return original(destination, loaded, first, *rest)

        return write

    with world.wrap("loader", site, wrapper):
        yield
