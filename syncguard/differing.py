"""Observes how weights of both sides differ: fetches the rows that tell most."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.checks.differences import Difference, differing_rows, find_row
from syncguard.checks.hypotheses import reason_for
from syncguard.observations import Unreadable, WeightPrint

if TYPE_CHECKING:
    from syncguard.observing import View

__all__ = ["differences"]

_SAMPLED_ROWS: Final = 8
_ROWS_PER_FETCH: Final = 1024
_EXPLAINED: Final = 4
"""Weights for whose difference a reason is looked for."""


def differences(view: "View") -> list[Difference]:
    """Every copy of a weight whose bytes are not the learner's, with a few rows of both sides."""
    learner, engine = view.get("learner_prints"), view.get("weight_prints")
    candidates = {"this version": learner, **view.context.history}
    found: dict[str, Difference] = {}
    for key, theirs in engine.items():
        mine = learner.get(theirs.weight)
        if not isinstance(theirs, WeightPrint) or mine is None:
            continue
        rows = differing_rows(mine, theirs)
        if rows is None or not rows.size:
            continue
        difference = _first_copy(engine, found, key) or _fetched(view, key, mine, rows)
        row = difference.sampled[0]
        prints = {name: int(values[row]) for name, values in theirs.rows.items()}
        origin = find_row(prints, candidates, theirs.weight)
        found[key] = replace(difference, weight=key, rows=rows, origin=origin)
    for key, difference in _unexplained(found):
        found[key] = replace(difference, reason=_reason(view, engine[key].weight, difference))
    return list(found.values())


def _unexplained(found: Mapping[str, Difference]) -> list[tuple[str, Difference]]:
    """A few that hold nothing that is known: looking for a reason reads the learner's export."""
    matrices = [
        (key, difference)
        for key, difference in found.items()
        if not difference.origin and all(t.ndim == 2 for t in difference.engine.values())
    ]
    return matrices[:_EXPLAINED]


def _reason(view: "View", weight: str, difference: Difference) -> str:
    with contextlib.suppress(Exception):  # the difference is told without it
        for name, tensor in view.learner.weights():
            if name == weight and tensor.dtype.itemsize > 1:
                return reason_for(tensor, difference.sampled, difference.engine)
    return ""


def _first_copy(
    engine: Mapping[str, WeightPrint | Unreadable], found: Mapping[str, Difference], key: str
) -> Difference | None:
    """What was found of the first copy of a weight, if a further one holds the same."""
    first, copy = engine.get(engine[key].weight), engine[key]
    if first is copy or not (isinstance(first, WeightPrint) and isinstance(copy, WeightPrint)):
        return None
    rows = differing_rows(first, copy)
    return found.get(first.weight) if rows is not None and not rows.size else None


def _fetched(view: "View", key: str, mine: WeightPrint, rows: NDArray[np.int64]) -> Difference:
    """Fetch differing rows until their values differ; a difference in encoding needs all rows."""
    grid = view.learner.grid_tensors(mine.weight)
    total = next(iter(mine.rows.values())).size
    worst: Difference | None = None
    first = 0
    while first < rows.size and not (worst and worst.values_differ):
        chunk = rows[first : first + (_ROWS_PER_FETCH if first else _SAMPLED_ROWS)].tolist()
        first += len(chunk)
        engine = _rows_of_engine(view, key, [] if len(mine.shape) < 2 else chunk)
        learner = {name: _rows_of(tensor, chunk) for name, tensor in grid.items()}
        found = Difference(key, rows, total, tuple(chunk), learner, engine)
        if worst is None or (worst.neutral and not found.neutral) or found.values_differ:
            worst = found
    assert worst is not None, "there are differing rows"  # noqa: S101
    return worst.narrowed(_SAMPLED_ROWS)


def _rows_of(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Rows as `syncguard.fingerprint.row_prints` counts them; a vector comes whole."""
    return tensor if tensor.ndim < 2 else tensor.reshape(-1, tensor.shape[-1])[list(rows)]


def _rows_of_engine(view: "View", key: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
    """Rows of the engine, or none: that they differ is known, and not to be lost by a failure."""
    try:
        return view.engine.fetch_rows(key, rows)
    except Exception:  # noqa: BLE001 - the difference is told without them
        return {}
