"""How two weights differ: compare row prints, then name the kind of difference."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.grids import dequantize
from syncguard.observations import WeightPrint

__all__ = ["Difference", "describe", "differing_rows", "find_row"]

_POISON_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """One weight whose bytes differ, with a few differing rows of both sides.

    Attributes:
        weight: Its name.
        rows: Numbers of all differing rows.
        total: Rows that the weight has.
        sampled: Numbers of the rows that were fetched.
        learner: The learner's tensors, those rows only.
        engine: The engine's tensors, those rows only.
        origin: Where the learner holds what the first of the rows holds in the engine, if
            anywhere: another row, another weight, or an older version.
    """

    weight: str
    rows: NDArray[np.int64]
    total: int
    sampled: tuple[int, ...]
    learner: Mapping[str, torch.Tensor]
    engine: Mapping[str, torch.Tensor]
    origin: str = ""

    @property
    def values_differ(self) -> bool:
        """Whether the dequantized values of the sampled rows differ, signs of zero apart."""
        return not torch.equal(_values(self.learner), _values(self.engine))

    @property
    def only_zero_blocks(self) -> bool:
        """Whether only scales of blocks that hold nothing but zeros differ."""
        if "scales" not in self.learner or "scales" not in self.engine:
            return False
        if not torch.equal(*(_octets(side["elements"]) for side in (self.learner, self.engine))):
            return False
        magnitude = _octets(self.learner["elements"]).bitwise_and(0x7F)
        blocks = magnitude.reshape(*magnitude.shape[:-1], -1, 32)
        differing = self.learner["scales"] != self.engine["scales"]
        return bool((blocks.amax(-1)[differing] == 0).all())


def differing_rows(a: WeightPrint, b: WeightPrint) -> NDArray[np.int64] | None:
    """Rows in which two prints differ, or none if they are not of the same form."""
    if a.rows.keys() != b.rows.keys() or a.shape != b.shape:
        return None
    masks = [a.rows[name] != b.rows[name] for name in a.rows]
    return np.flatnonzero(np.logical_or.reduce(masks))


def find_row(
    row: Mapping[str, int], candidates: Mapping[str, Mapping[str, WeightPrint]], weight: str
) -> str:
    """Where a row with these prints exists, told in words; empty if nowhere.

    Args:
        row: Component name to the row's print.
        candidates: Label (``this version`` or an older one) to the learner's prints.
        weight: The weight that was looked at; the search begins with its own rows.
    """
    for label, prints in candidates.items():
        for name in sorted(prints, key=lambda name: name != weight):
            held = prints[name].rows
            if held.keys() != row.keys():
                continue
            masks = [held[part] == np.uint64(row[part]) for part in row]
            found = np.flatnonzero(np.logical_and.reduce(masks))
            if found.size:
                return f"row {found[0]} of the learner's {name}, {label}"
    return ""


def describe(difference: Difference) -> str:
    """The kind of the difference, in a few words, most specific first."""
    learner, engine = difference.learner, difference.engine
    if difference.origin:
        return f"holds {difference.origin}"
    for name, tensor in engine.items():
        octets = _octets(tensor)
        common = int(octets.flatten().mode().values)
        share = float((octets == common).double().mean())
        if share > _POISON_SHARE and common in (0xA5, 0x5A):
            return f"{share:.0%} of the {name} still hold the poison pattern 0x{common:02X}"
    if learner.keys() != engine.keys():
        return f"the learner holds {'+'.join(learner)}, the engine {'+'.join(engine)}"
    if any(learner[name].shape != engine[name].shape for name in learner):
        return "the shapes differ"
    if difference.only_zero_blocks:
        return "only the scales of all-zero blocks differ"
    if not difference.values_differ:
        return "the same values in another encoding"
    if "scales" in learner:
        return _describe_block(learner, engine)
    share = float((_octets(learner["values"]) != _octets(engine["values"])).double().mean())
    return f"{share:.1%} of the bytes of the sampled rows differ"


def _describe_block(learner: Mapping[str, torch.Tensor], engine: Mapping[str, torch.Tensor]) -> str:
    scale_steps = engine["scales"].int() - learner["scales"].int()
    elements = _octets(learner["elements"]) != _octets(engine["elements"])
    wrong_scales = scale_steps[scale_steps != 0]
    where = f"{wrong_scales.numel()} scales, {int(elements.sum())} elements of the sampled rows"
    if not elements.any() and wrong_scales.numel():
        steps = sorted(set(wrong_scales.tolist()))
        if steps in ([1], [-1]):
            return f"scales one exponent {'high' if steps == [1] else 'low'} ({where})"
        return f"the scales are those of other weights ({where})"
    if not wrong_scales.numel() and elements.any():
        return f"elements differ under the same scales ({where})"
    if set(wrong_scales.tolist()) == {-1}:
        return f"scales rounded down: a floor or even rule instead of round-up ({where})"
    if set(wrong_scales.tolist()) == {1}:
        return f"scales rounded up too far ({where})"
    return f"other weights ({where})"


def _octets(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _values(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if "scales" in tensors:
        return dequantize(tensors["elements"], tensors["scales"], dtype=torch.float32) + 0.0
    return tensors["values"].float() + 0.0
