"""Observes what serving kernels compute with, beside what the learner's weights would give."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.fingerprint import value_print
from syncguard.grids import from_grid, round_activations, unit_columns, unit_of
from syncguard.observations import (
    BlockProbe,
    Place,
    ProbeOutput,
    ProbeReference,
    ProbeTurn,
    Rotation,
    WeightPrint,
)
from syncguard.probes import flushed, narrowed, random_rows, turn_rows
from syncguard.shards import component_prints, differing_ranks, value_prints_of

if TYPE_CHECKING:
    from syncguard.observing import View

__all__ = [
    "block_probe",
    "byte_ranks",
    "flushed_values",
    "probe_ranks",
    "random_probe",
    "rotation",
]

Rows = Callable[[torch.Tensor], torch.Tensor]

_PROBE_ROWS: Final = 16


def random_probe(view: "View") -> list[ProbeReference]:
    """Serving paths on Gaussian rows, against a kernel that is emulated with right weights."""
    activations = {layer.module: layer.activations for layer in view.get("engine_layers")}
    seed = view.context.seed
    references = []
    for output in view.engine.probe_random(_PROBE_ROWS, seed):
        weight, own = _probed(view, output, _exact_values)
        dtype = _dtype(view, output)
        x = own(random_rows(_PROBE_ROWS, _width(view, output), seed, dtype))
        used = round_activations(x, activations.get(output.module, ""))
        matrix = weight.T
        plain, emulated = x.float() @ matrix, used @ matrix
        slack = used.abs() @ matrix.abs()
        unit = torch.finfo(dtype).eps
        bound = unit * emulated.abs() + 2 * weight.shape[1] * 2.0**-24 * slack
        got = torch.from_numpy(output.output)
        worst = ((got - emulated).abs() / bound.clamp_min(1e-30)).max()
        references.append(
            ProbeReference(
                module=_on_rank(view, output),
                parts=output.parts,
                worst=float(worst),
                error=_relative_error(got, plain),
                healthy=_relative_error(emulated, plain),
                nbytes=_covered(view, output),
            )
        )
    return references


def block_probe(view: "View") -> list[BlockProbe]:
    """Serving paths of the layers whose turn it is, a row for each block of their weights."""
    chosen = view.get("rotation")
    if chosen is None:
        return []
    turns = _turns(view, chosen)
    probes = []
    for output in view.engine.probe_blocks(turns):
        weight, own = _probed(view, output, _unit_values)
        rows = turn_rows(turns[output.module], _width(view, output), weight.dtype)
        wanted = own(rows).float() @ weight.float().T
        got = torch.from_numpy(output.output)
        # Outputs are rounded once. Products in bf16 flush subnormals on several devices.
        tiny = torch.finfo(weight.dtype).smallest_normal
        gap = (got - wanted.to(weight.dtype).float()).abs()
        differing = ~(gap < tiny)  # so that NaN differs
        first = differing.nonzero()[:1].tolist()
        probes.append(
            BlockProbe(
                module=_on_rank(view, output),
                parts=output.parts,
                wrong=int(differing.sum()),
                outputs=differing.numel(),
                where=f"row {first[0][1]}, block {first[0][0]}" if first else "",
            )
        )
    return probes


def rotation(view: "View") -> Rotation | None:
    """Whose turn it is; none where every layer is probed at each sync."""
    if view.context.turns is None:
        return None
    layers = view.get("learner_layers")
    looked_up = {layer.weight for layer in layers if layer.kind == "embedding"}
    return view.context.turns.take(view.get("engine_layers"), looked_up)


def _turns(view: "View", chosen: Rotation) -> dict[str, ProbeTurn]:
    """Sums for low-precision layers, where they are exact; for all others rows of the identity."""
    grids = {layer.weight: layer.grid for layer in view.get("learner_layers")}
    parts = {layer.module: layer.parts for layer in view.get("engine_layers")}
    turns = {}
    for module, before in chosen.chosen.items():
        sums = all(grids.get(part) == "mxfp8" for part in parts[module])
        turns[module] = ProbeTurn(sums, view.context.seed if sums else before)
    return turns


def _probed(
    view: "View", output: ProbeOutput, values: Callable[["View", str], torch.Tensor]
) -> tuple[torch.Tensor, Rows]:
    """Values of what a serving path was asked for, and how to cut rows to its inputs."""
    whole = [values(view, part) for part in output.parts]
    if not output.places:
        return torch.cat(whole), lambda rows: rows
    pairs = zip(output.places, whole, strict=True)
    first, last = output.places[0].columns
    return torch.cat([place.of(part) for place, part in pairs]), lambda rows: rows[:, first:last]


def _exact_values(view: "View", weight: str) -> torch.Tensor:
    """The values of the learner's grid in float32, where its model's dtype may not hold them."""
    grid, tensors = _grid(view, weight), view.learner.grid_tensors(weight)
    if unit_of(grid) == 1:
        return view.learner.dequantized(weight).float()
    return from_grid(tensors["elements"], tensors["scales"], grid, torch.float32)


def _unit_values(view: "View", weight: str) -> torch.Tensor:
    """What a serving path of the learner's weight gives for the unit rows of its grid."""
    grid, values = _grid(view, weight), view.learner.dequantized(weight)
    if unit_of(grid) == 1:
        return values
    tensors = view.learner.grid_tensors(weight)
    return unit_columns(tensors["elements"], tensors["scales"], grid).to(values.dtype)


def _grid(view: "View", weight: str) -> str:
    grid: str = view.get("learner_prints")[weight].grid
    return grid


def _dtype(view: "View", output: ProbeOutput) -> torch.dtype:
    return view.learner.dequantized(output.parts[0]).dtype


def _width(view: "View", output: ProbeOutput) -> int:
    """Input features of a whole layer; read from its print, since a weight costs a pass."""
    width: int = view.get("learner_prints")[output.parts[0]].shape[1]
    return width


def _covered(view: "View", output: ProbeOutput) -> int:
    """Bytes of the learner's weights that a serving path was asked for."""
    prints = view.get("learner_prints")
    if not output.places:
        return sum(prints[part].nbytes for part in output.parts)
    pairs = zip(output.places, output.parts, strict=True)
    return sum(prints[part].nbytes * place.numel // math.prod(place.shape) for place, part in pairs)


def _on_rank(view: "View", output: ProbeOutput) -> str:
    """The module's path, with the rank that answered where there are several."""
    ranks = {layer.rank for layer in view.get("engine_layers")}
    return f"rank{output.rank}:{output.module}" if len(ranks) > 1 else output.module


def _relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative Frobenius error; a layer of zeros that gives zeros has none."""
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))


def byte_ranks(view: "View") -> dict[str, tuple[int, ...]]:
    """Which ranks hold other bytes than the learner, where several share a weight."""
    prints = view.get("learner_prints")

    def part(weight: str, place: Place) -> dict[str, NDArray[np.uint64]]:
        grid = view.learner.grid_tensors(weight)
        return {name: component_prints(name, place.of(t), place) for name, t in grid.items()}

    def whole(weight: str) -> Mapping[str, NDArray[np.uint64]] | None:
        return prints[weight].rows if weight in prints else None

    return differing_ranks(view.get("weight_prints"), whole, part)


def probe_ranks(view: "View") -> dict[str, tuple[int, ...]]:
    """Which ranks compute with other values than the learner, where several share a weight."""
    values = view.get("learner_values")

    def part(weight: str, place: Place) -> dict[str, NDArray[np.uint64]]:
        return {"values": value_prints_of(place.of(narrowed(_unit_values(view, weight))), place)}

    def whole(weight: str) -> Mapping[str, NDArray[np.uint64]] | None:
        return {"values": values[weight]} if weight in values else None

    return differing_ranks(view.get("exact_probe"), whole, part)


def flushed_values(view: "View") -> dict[str, NDArray[np.uint64]]:
    """Values without subnormals, of weights that are not served as they are: why it may be so."""
    values, found = view.get("learner_values"), {}
    for held in view.get("exact_probe").values():
        wanted = values.get(held.weight)
        if not isinstance(held, WeightPrint) or wanted is None or held.weight in found:
            continue
        if not np.array_equal(held.rows["values"], wanted):
            weight = flushed(narrowed(_unit_values(view, held.weight)))
            if weight is not None:
                found[held.weight] = value_print(weight)
    return found
