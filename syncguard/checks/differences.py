"""How two weights differ: compare row prints, then name the kind of difference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.checks.judgement import counted
from syncguard.grids import SCALED_GRIDS, from_grid
from syncguard.observations import WeightPrint

__all__ = ["Difference", "describe", "differing_rows", "differing_scales", "find_row"]

_POISONS: Final = (0xA5, 0x5A)
_POISON_SHARE: Final = 0.5
"""Bytes of real weights are spread over many values; half of them alike are a fill."""


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """One copy of a weight whose bytes differ, with a few differing rows of both sides.

    The rows are chosen to be the worst ones: if their values are equal, those of all differing
    rows are.

    Attributes:
        weight: The engine's key: the weight's name, or that of a further copy.
        rows: Numbers of all differing rows.
        total: Rows that the weight has.
        sampled: Numbers of the rows that were fetched.
        learner: The learner's tensors, those rows only.
        engine: The engine's tensors, those rows only; empty if they cannot be fetched.
        origin: Where the learner holds what the first of the rows holds in the engine, if
            anywhere: another row, another weight, or an older version.
        reason: What turns the learner's weight into what the engine holds, if that is known; see
            `syncguard.checks.hypotheses`.
    """

    weight: str
    rows: NDArray[np.int64]
    total: int
    sampled: tuple[int, ...]
    learner: Mapping[str, torch.Tensor]
    engine: Mapping[str, torch.Tensor]
    origin: str = ""
    reason: str = ""

    @property
    def values_differ(self) -> bool:
        """Whether the dequantized values of the sampled rows differ, signs of zero apart."""
        if self.learner.keys() != self.engine.keys():
            return True
        mine, theirs = _values(self.learner), _values(self.engine)
        if mine.shape != theirs.shape:
            return True
        both_nan = (mine != mine) & (theirs != theirs)
        return not bool(((mine == theirs) | both_nan).all())

    @property
    def only_zero_blocks(self) -> bool:
        """Whether only scales of blocks that hold nothing but zeros differ."""
        if not {"elements", "scales"} <= self.learner.keys() & self.engine.keys():
            return False
        if not torch.equal(*(_octets(side["elements"]) for side in (self.learner, self.engine))):
            return False
        mine, theirs = self.learner["scales"], self.engine["scales"]
        if mine.shape != theirs.shape:
            return False
        elements = self.learner["elements"]
        magnitude = _octets(elements).bitwise_and(0xFF if elements.dtype == torch.int8 else 0x7F)
        blocks = magnitude.reshape(*mine.shape, -1)
        return bool((blocks.amax(-1)[mine != theirs] == 0).all())

    @property
    def other_format(self) -> bool:
        """Whether the engine holds the same values in another format without scales."""
        if not self.learner.keys() == self.engine.keys() == {"values"}:
            return False
        same_format = self.learner["values"].dtype == self.engine["values"].dtype
        return not same_format and not self.values_differ

    @property
    def neutral(self) -> bool:
        """Whether no kernel can tell the two sides apart."""
        return self.only_zero_blocks or self.other_format

    def narrowed(self, count: int) -> "Difference":
        """The same with at most ``count`` of many sampled rows, the worst of them.

        Rows whose values differ are worse than those whose elements are only encoded otherwise,
        and these than rows of which only scales differ. Both sides have the same form, else no
        more than a few rows are sampled to begin with.
        """
        if len(self.sampled) <= count:
            return self
        values = (_values(self.learner) != _values(self.engine)).any(1)
        main = "elements" if "elements" in self.learner else "values"
        encoded = (_octets(self.learner[main]) != _octets(self.engine[main])).any(1)
        badness = 2 * values.int() + encoded.int()
        kept = torch.argsort(badness, descending=True, stable=True)[:count]
        return replace(
            self,
            sampled=tuple(self.sampled[int(row)] for row in kept),
            learner={name: tensor[kept] for name, tensor in self.learner.items()},
            engine={name: tensor[kept] for name, tensor in self.engine.items()},
        )


def differing_rows(a: WeightPrint, b: WeightPrint) -> NDArray[np.int64] | None:
    """Rows in which two prints differ, or none if they are not of the same form."""
    if a.rows.keys() != b.rows.keys() or a.shape != b.shape:
        return None
    masks = [a.rows[name] != b.rows[name] for name in a.rows]
    return np.flatnonzero(np.logical_or.reduce(masks))


def differing_scales(mine: WeightPrint, theirs: WeightPrint) -> NDArray[np.int64]:
    """Rows in which scales differ, where those are all that an engine has to show of a weight."""
    if theirs.rows.keys() != {"scales"} or "scales" not in mine.rows or mine.shape != theirs.shape:
        return np.zeros(0, np.int64)
    return np.flatnonzero(mine.rows["scales"] != theirs.rows["scales"])


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
    engine = difference.engine
    if difference.origin:
        return f"holds {difference.origin}"
    if not engine:
        return "these rows cannot be fetched for a closer look"
    return _poisoned(engine) or _described(difference)


def _described(difference: Difference) -> str:
    """What two sides make of each other that hold rows of something real."""
    learner, engine = difference.learner, difference.engine
    if learner.keys() != engine.keys():
        return f"the learner holds {'+'.join(learner)}, the engine {'+'.join(engine)}"
    if any(learner[name].shape != engine[name].shape for name in learner):
        return "the shapes differ"
    if difference.only_zero_blocks:
        return "only the scales of all-zero blocks differ"
    if not difference.values_differ:
        why = f": {difference.reason}" if difference.reason else ""
        return f"the same values in another encoding{why}"
    if difference.reason:
        return difference.reason
    if "scales" in learner:
        return _describe_block(learner, engine)
    if learner["values"].dtype != engine["values"].dtype:
        return f"other values, as {engine['values'].dtype} instead of {learner['values'].dtype}"
    share = float((_octets(learner["values"]) != _octets(engine["values"])).double().mean())
    return f"{share:.1%} of the bytes of the sampled rows differ"


def _poisoned(engine: Mapping[str, torch.Tensor]) -> str:
    """Which component is mostly a poison pattern, and which one; empty if none is."""
    for name, tensor in engine.items():
        octets = _octets(tensor)
        for pattern in _POISONS:
            share = float((octets == pattern).double().mean())
            if share > _POISON_SHARE:
                return f"{share:.0%} of the {name} still hold the poison pattern 0x{pattern:02X}"
    return ""


def _describe_block(learner: Mapping[str, torch.Tensor], engine: Mapping[str, torch.Tensor]) -> str:
    differ = engine["scales"] != learner["scales"]
    elements = int((_octets(learner["elements"]) != _octets(engine["elements"])).sum())
    steps = _exponent_steps(learner["scales"], engine["scales"])
    wrong_scales = int(differ.sum())
    told = [
        *([counted(wrong_scales, "scale", "scales")] if wrong_scales else []),
        *([counted(elements, "element", "elements")] if elements else []),
    ]
    where = f"({', '.join(told)} of the sampled rows)"
    if not wrong_scales:
        return f"elements differ under the same scales {where}"
    if steps == {-1}:
        rule = "scales rounded down: a floor or even rule instead of round-up"
        return f"{rule if elements else 'scales one exponent low'} {where}"
    if steps == {1}:
        return f"{'scales rounded up too far' if elements else 'scales one exponent high'} {where}"
    return f"{'other weights' if elements else 'the scales are those of other weights'} {where}"


def _exponent_steps(learner: torch.Tensor, engine: torch.Tensor) -> set[int]:
    """By how many exponents scales differ; of scales that are no exponents nothing."""
    if learner.is_floating_point():
        return set()
    steps = engine.int() - learner.int()
    return set(steps[steps != 0].tolist())


def _octets(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous()
    return (flat if flat.ndim else flat.reshape(1)).view(torch.uint8)


def _values(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    if "scales" in tensors:
        elements, scales = tensors["elements"], tensors["scales"]
        return from_grid(elements, scales, SCALED_GRIDS[scales.dtype], torch.float32)
    values = tensors["values"]
    return values.double() if values.is_floating_point() else values
