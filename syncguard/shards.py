"""Parts of weights that ranks hold: their prints, and which of them are not the learner's.

What ranks hold adds up to one print of each row, in which nobody's part shows. Where such a print
differs from the learner's, the parts are compared one by one.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.fingerprint import granule_of, row_prints, value_print
from syncguard.observations import Place, Unreadable, WeightPrint

__all__ = ["component_prints", "differing_ranks", "value_prints_of"]

Rows = Mapping[str, NDArray[np.uint64]]


def component_prints(
    component: str, tensor: torch.Tensor, place: Place | None
) -> NDArray[np.uint64]:
    """Row prints of what a rank holds of a component, as parts of those of whole rows.

    Args:
        component: ``elements``, ``scales`` or ``values``.
        tensor: The rank's, [rows, columns] or a vector.
        place: Its rectangle of the weight; none for all of it.
    """
    granule = 1 if component == "scales" else None
    if place is None:
        return row_prints(tensor, granule=granule)
    size, first = _position(tensor, place)
    return row_prints(tensor, granule=granule or size, first=first)


def value_prints_of(tensor: torch.Tensor, place: Place) -> NDArray[np.uint64]:
    """The same of values, in which both zeros are alike."""
    size, first = _position(tensor, place)
    return value_print(tensor, granule=size, first=first)


def differing_ranks(
    answers: Mapping[str, WeightPrint | Unreadable],
    expected: Callable[[str], Rows | None],
    part: Callable[[str, Place], Rows],
) -> dict[str, tuple[int, ...]]:
    """Ranks whose part of a weight is not the learner's, for each answer that several share.

    Args:
        answers: The engine's, by its keys.
        expected: The learner's rows of a whole weight, or none if there is nothing to compare.
        part: The learner's rows of a rectangle of it.

    Returns:
        Key to ranks; what does not differ is left out.
    """
    found = {}
    for key, answer in answers.items():
        if not isinstance(answer, WeightPrint) or not answer.shards:
            continue
        whole = expected(answer.weight)
        if whole is None or _equal(whole, answer.rows):
            continue
        found[key] = tuple(
            shard.rank
            for shard in answer.shards
            if not _equal(part(answer.weight, shard.place), shard.rows)
        )
    return found


def _position(tensor: torch.Tensor, place: Place) -> tuple[int, int]:
    """Granule of the weight's whole rows, and the first byte of the rectangle's in them."""
    width = (place.columns[1] - place.columns[0]) // tensor.shape[-1]
    row = place.shape[-1] // width * tensor.element_size()
    return granule_of(row), place.columns[0] // width * tensor.element_size()


def _equal(one: Rows, other: Rows) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(rows, other[name]) for name, rows in one.items()
    )
