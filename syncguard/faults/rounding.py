"""Faults that break C2 where weights are rounded: scale rules, single bytes and bits, sources.

They are armed at quantizers. An engine's is asked for one layer, or for all of them where one
function serves all.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Final

import torch

from syncguard.faults.registry import Arm, fault, fault_table
from syncguard.faults.tools import octets, same_bytes, started_from
from syncguard.faults.world import World
from syncguard.grids import SCALE_RULES, quantize

__all__ = ["fp32_source"]

Grid = tuple[torch.Tensor, torch.Tensor]
"""Elements, float8_e4m3fn [..., K], and scales, uint8 [..., K // 32]."""

Change = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Grid]
"""Gives other elements and scales for a weight, its elements and its scales; these are copies."""

_BLOCK: Final = 32
_TILE: Final = (128, 4)
_LARGEST: Final = 0x7E
_CLAMPED_SCALE: Final = 105  # of 1e-4 / 448, rounded up
_BIAS: Final = 127
_DIFFERENT: Final = "weight-bytes weight-values exact-probe"
_FAR_OFF: Final = f"{_DIFFERENT} random-probe"


def _requantizing(world: World, site: str, change: Change) -> AbstractContextManager[None]:
    def wrapper(original: Callable[..., Grid]) -> Callable[..., Grid]:
        def requantize(*args: Any, **kwargs: Any) -> Grid:
            before = original(*args, **kwargs)
            weight = next(value for value in args if isinstance(value, torch.Tensor))
            after = change(weight, *(part.clone() for part in before))
            pairs = zip(before, after, strict=True)
            world.fire(not all(same_bytes(one, other) for one, other in pairs))
            return after

        return requantize

    return world.wrap("quantizer", site, wrapper)


def _scale_step(step: int) -> Change:
    """Move the scale of one block in the middle."""

    def change(weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> Grid:
        flat = scales.view(-1)
        flat[_nonzero_block(elements)] += step
        return elements, scales

    return change


def _element_bits(mask: int) -> Change:
    """Flip bits of one element in the middle whose value they change."""

    def change(weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> Grid:
        flat = elements.view(torch.uint8).view(-1)
        magnitude = flat & 0x7F
        candidates = ((magnitude > 0) & (magnitude < _LARGEST)).nonzero()
        flat[candidates[len(candidates) // 2]] ^= mask
        return elements, scales

    return change


def _tile_of_zeros(weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> Grid:
    scales[..., : _TILE[0], : _TILE[1]] = 0
    return elements, scales


def _constant_scale(weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> Grid:
    scales.fill_(_BIAS)
    blocks = _blocks(weight.float())
    return blocks.to(elements.dtype).view(elements.shape), scales


def _rule(rule: str) -> Change:
    return lambda weight, elements, scales: quantize(weight, rule=rule)


def _square_blocks(weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> Grid:
    """One scale for 32 x 32 elements: the largest of its rows' scales."""
    for first in range(0, scales.shape[-2], _BLOCK):
        tile = scales[..., first : first + _BLOCK, :]
        tile.copy_(tile.amax(-2, keepdim=True).expand_as(tile))
    blocks = _blocks(weight.float())
    units = blocks / torch.exp2(scales.float() - _BIAS)[..., None]
    return units.to(elements.dtype).view(elements.shape), scales


def _same_values(weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> Grid:
    """In the blocks where it is exact: half the elements, twice the scale."""
    blocks = _blocks(elements.float())
    halves = (blocks / 2).to(elements.dtype)
    exact = (halves.float() * 2 == blocks).all(-1, keepdim=True)
    mixed = torch.where(exact, octets(halves), elements.view(torch.uint8).view(halves.shape))
    return mixed.view(elements.dtype).view(elements.shape), scales + exact[..., 0].to(scales.dtype)


def _blocks(tensor: torch.Tensor) -> torch.Tensor:
    return torch.unflatten(tensor, -1, (-1, _BLOCK))


def _nonzero_block(elements: torch.Tensor) -> int:
    blocks = (octets(elements) & 0x7F).view(-1, _BLOCK).amax(-1).nonzero()
    return int(blocks[len(blocks) // 2])


_CHANGES: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "scale-byte-high": {
            "change": _scale_step(1),
            "what": "One scale byte is one too high.",
            "claimed_by": _FAR_OFF,
        },
        "scale-byte-low": {
            "change": _scale_step(-1),
            "what": "One scale byte is one too low.",
            "claimed_by": _FAR_OFF,
        },
        "element-low-bit": {
            "change": _element_bits(0x01),
            "what": "The last bit of one element differs.",
        },
        "element-sign": {
            "change": _element_bits(0x80),
            "what": "The sign of one element differs.",
        },
        "scale-tile-of-zeros": {
            "change": _tile_of_zeros,
            "what": "A tile of 128 x 4 scales holds zeros, as memory that is zeroed.",
            "claimed_by": _FAR_OFF,
        },
        "constant-scale": {
            "change": _constant_scale,
            "what": "Every scale is 1, and elements are rounded as if there were none.",
            "claimed_by": _FAR_OFF,
        },
        "square-blocks": {
            "change": _square_blocks,
            "what": "Scales belong to blocks of 32 x 32, as for training with transposes.",
            "claimed_by": "weight-bytes",
        },
        "same-values-other-bytes": {
            "change": _same_values,
            "what": "Some blocks hold half the elements and twice the scale: the same values.",
            "claimed_by": "weight-bytes",
        },
    }
    | {
        f"scale-rule-{name}": {
            "change": _rule(name),
            "what": f"The engine rounds scales by the rule {name!r} ({rule.used_by}).",
            "claimed_by": "weight-bytes" if name == "ceil" else _FAR_OFF,
        }
        for name, rule in SCALE_RULES.items()
        if name != "round_up"
    }
)


def _requantizing_by(change: Change) -> Arm:
    def arm(world: World, site: str) -> Iterator[None]:
        with _requantizing(world, site, change):
            yield

    return arm


fault_table(
    _CHANGES,
    _requantizing_by,
    shows="Nothing but a small offset of KL shows it, if anything does. Compare the quantizers of "
    "both sides on one tensor, `syncguard.grids.canary`, byte for byte.",
    breaks="C2",
    claimed_by=_DIFFERENT,
    seam="quantizer",
    sites=lambda site: site != "learner",
)


def _engine_quantizers(world: World) -> list[str]:
    """The first of them is the one that a canary passes."""
    return [site for site in world.seams()["quantizer"] if site != "learner"]


def _restartable(world: World) -> list[str]:
    """Quantizers of an engine, where the learner can start from another checkpoint."""
    return _engine_quantizers(world) if hasattr(world.learner, "start_from") else []


@fault(
    "block-maximum-clamped",
    breaks="C2",
    claimed_by="quantizer-canary",
    seam="quantizer",
    at=lambda world: _engine_quantizers(world)[:1],
)
def block_maximum_clamped(world: World, site: str) -> Iterator[None]:
    """The engine takes no block's maximum for less than 1e-4, a guard against division by zero.

    Few weights ever meet it, until one does. Run a canary that holds every maximum through both
    quantizers.
    """

    def change(weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> Grid:
        raised = scales.clamp(min=_CLAMPED_SCALE)
        units = _blocks(weight.float()) / torch.exp2(raised.float() - _BIAS)[..., None]
        return units.to(elements.dtype).view(elements.shape), raised

    with _requantizing(world, site, change):
        yield


@fault(
    "fp32-source",
    breaks="C2",
    claimed_by=_DIFFERENT,
    seam="quantizer",
    met="W20",
    links=("https://github.com/InternLM/xtuner/pull/2044",),
    sites=lambda site: site == "learner",
)
def fp32_source(world: World, site: str) -> Iterator[None]:
    """The learner rounds its float32 masters to the grid, the engine the bfloat16 copy of them.

    Some codes and scales differ by a step, more after every optimizer step; in the published case
    KL was 25 times as large. Round from one source on both sides.
    """

    def wrapper(original: Callable[..., Grid]) -> Callable[..., Grid]:
        def from_master(name: str, weight: torch.Tensor) -> Grid:
            before = original(name, weight)
            after = original(name, world.learner.master(name)) if name else before
            pairs = zip(before, after, strict=True)
            world.fire(not all(same_bytes(one, other) for one, other in pairs))
            return after

        return from_master

    with world.wrap("quantizer", site, wrapper):
        yield


@fault(
    "zero-block-scale-one",
    breaks="C2",
    claimed_by="",
    seam="quantizer",
    beside="export",
    met="W94",
    links=("https://github.com/NVIDIA-NeMo/RL/pull/3477",),
    at=_restartable,
    equivalent="in a block of zeros every scale gives the same values",
)
def zero_block_scale_one(world: World, site: str) -> Iterator[None]:
    """Blocks of zeros have scale byte 1, since a kernel refuses 0.

    The other part of the published case, a KL of more than 2, has no known cause. Compare zero
    blocks by value.
    """

    def change(weight: torch.Tensor, elements: torch.Tensor, scales: torch.Tensor) -> Grid:
        zero = _blocks(octets(elements) & 0x7F).amax(-1) == 0
        return elements, torch.where(zero, torch.ones_like(scales), scales)

    with started_from(world, _with_zero_block), _requantizing(world, site, change):
        yield


def _with_zero_block(name: str, tensor: torch.Tensor) -> torch.Tensor:
    del name
    if tensor.ndim < 2 or tensor.shape[-1] % _BLOCK:
        return tensor
    changed = tensor.clone()
    changed[..., :1, :_BLOCK] = 0
    return changed
