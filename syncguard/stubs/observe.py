"""Observations of the stub's ranks, made where the tensors live; see `syncguard.stubs.merging`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.fingerprint import row_prints, value_print
from syncguard.grids import canary
from syncguard.observations import (
    EngineLayer,
    ProbeOutput,
    ProbeTurn,
    QuantizedCanary,
    Rederivation,
    Unreadable,
    WeightPrint,
)
from syncguard.probes import identity_rows, random_rows, turn_rows
from syncguard.stubs.build import StubRank
from syncguard.stubs.merging import Merger
from syncguard.stubs.reading import GRIDS, component_of, components, held, parameters, part
from syncguard.stubs.serve import serving_product
from syncguard.stubs.topology import WeightSpec

__all__ = [
    "fetch_rows",
    "layer_table",
    "poison",
    "probe_blocks",
    "probe_exact",
    "probe_random",
    "quantize_canary",
    "rederive",
    "weight_prints",
]

Specs = Mapping[str, WeightSpec]
Prints = dict[str, WeightPrint | Unreadable]


def layer_table(ranks: Sequence[StubRank]) -> list[EngineLayer]:
    """See `syncguard.protocols.Engine.layers`; experts have one row for each of their products."""
    table = []
    for rank in ranks:
        for layer in rank.stub_layers:
            for matrix in layer.matrices if layer.parts else ():
                serving = layer.absorbed_by() or layer
                method = layer.quant_method
                assert method is not None, "matrices have a method"  # noqa: S101
                table.append(
                    EngineLayer(
                        module=_module(layer, matrix),
                        parts=tuple(name for name, _ in held(layer, matrix)),
                        method=type(method).__name__,
                        kernel=serving.kernel.name,
                        grid=method.grid,
                        activations=serving.kernel.activations,
                        rank=rank.number,
                    )
                )
    return table


def weight_prints(ranks: Sequence[StubRank], specs: Specs) -> Prints:
    """See `syncguard.protocols.Engine.weight_prints`."""
    merger = Merger(specs)
    for rank in ranks:
        for layer in rank.stub_layers:
            for parameter in parameters(layer):
                _print_parameter(merger, rank.number, layer, parameter)
    return merger.result()


def probe_exact(ranks: Sequence[StubRank], specs: Specs) -> Prints:
    """See `syncguard.protocols.Engine.probe_exact`."""
    merger = Merger(specs)
    for rank in ranks:
        for layer in rank.stub_layers:
            for matrix in layer.matrices if layer.parts else ():
                try:
                    rows = _probed(layer, matrix)
                except (RuntimeError, ValueError) as error:
                    for name, shard in held(layer, matrix):
                        merger.add_unreadable(name, rank.number, shard, f"its kernel: {error}")
                    continue
                for name, shard in held(layer, matrix):
                    nbytes = shard.numel * torch.bfloat16.itemsize
                    prints = {"values": part(rows, shard)}
                    merger.add(name, rank.number, shard, prints, "bf16", nbytes)
    return merger.result()


def probe_random(
    ranks: Sequence[StubRank], specs: Specs, rows: int, seed: int
) -> list[ProbeOutput]:
    """See `syncguard.protocols.Engine.probe_random`; each expert's products on their own."""
    return _probe(ranks, specs, lambda _, width: random_rows(rows, width, seed, torch.bfloat16))


def probe_blocks(
    ranks: Sequence[StubRank], specs: Specs, turns: Mapping[str, ProbeTurn]
) -> list[ProbeOutput]:
    """See `syncguard.protocols.Engine.probe_blocks`."""

    def rows(module: str, width: int) -> torch.Tensor:
        return turn_rows(turns[module], width, torch.bfloat16)

    return _probe(ranks, specs, rows, turns)


def _probe(
    ranks: Sequence[StubRank],
    specs: Specs,
    rows: Callable[[str, int], torch.Tensor],
    modules: Collection[str] | None = None,
) -> list[ProbeOutput]:
    """Run serving paths on the rows of a width; all modules' paths unless some are named."""
    sums: dict[tuple[str, str], torch.Tensor] = {}
    seen: set[tuple[str, int, int]] = set()
    for rank in ranks:
        for layer in rank.stub_layers:
            for matrix in layer.matrices if layer.parts and layer.kind != "embedding" else ():
                module = _module(layer, matrix)
                if modules is not None and module not in modules:
                    continue
                names = list(held(layer, matrix))
                columns = names[0][1].source_columns
                assert columns is not None, "matrices have columns"  # noqa: S101
                x = rows(module, specs[names[0][0]].shape[1])
                y = serving_product(layer, matrix, x[:, columns].contiguous()).mT
                for name, shard in names:
                    place = name, shard.source_rows.start, columns.start
                    if place in seen:
                        continue
                    seen.add(place)
                    empty = torch.zeros(specs[name].shape[0], len(x))
                    sums.setdefault((module, name), empty)[shard.source_rows] += part(y, shard)
    return _outputs(sums)


def quantize_canary(ranks: Sequence[StubRank]) -> QuantizedCanary | None:
    """See `syncguard.protocols.Engine.quantize_canary`: by the first method that quantizes."""
    methods = (layer.quant_method for rank in ranks for layer in rank.stub_layers)
    method: Any = next((method for method in methods if hasattr(method, "quantize")), None)
    if method is None:
        return None
    elements, scales = method.quantize(canary())
    return QuantizedCanary(elements, scales, served=None)


def rederive(ranks: Sequence[StubRank], prefix: Any) -> list[Rederivation]:
    """See `syncguard.protocols.Engine.rederive`."""
    results = []
    for rank in ranks:
        for layer in rank.stub_layers:
            if layer.kernel is None:
                continue
            now = layer.kernel.held(layer)
            weights = dict.fromkeys(name for name, _ in held(layer.derives_from()))
            for name, fresh in layer.kernel.derive(layer).items():
                differing = _differing(now.get(name), fresh)
                path = f"{prefix(rank)}{layer.path}.{name}"
                results.append(Rederivation(path, tuple(weights), differing, fresh.nbytes))
    return results


def poison(ranks: Sequence[StubRank], pattern: int) -> dict[str, int]:
    """See `syncguard.protocols.Engine.poison`."""
    counts: dict[str, int] = {}
    for rank in ranks:
        for layer in rank.stub_layers:
            for parameter in parameters(layer):
                found = components(layer, parameter)
                readable = {} if isinstance(found, str) else found
                for name, shard in held(layer, parameter):
                    nbytes = sum(part(t, shard).nbytes for t in readable.values())
                    counts[name] = counts.get(name, 0) + nbytes
                if readable:
                    suffixes = ("", "_scale") if "scales" in readable else ("",)
                    for suffix in suffixes:
                        _fill(getattr(layer, f"{parameter}{suffix}").data, pattern)
            if layer.kernel is not None and layer.derives_from().parts:
                for tensor in layer.kernel.held(layer).values():
                    _fill(tensor, pattern)
    return counts


def fetch_rows(
    ranks: Sequence[StubRank], specs: Specs, weight: str, rows: Sequence[int]
) -> dict[str, torch.Tensor]:
    """See `syncguard.protocols.Engine.fetch_rows`; a vector comes whole."""
    whole: dict[str, torch.Tensor] = {}
    spec, seen = specs[weight], set()
    for rank in ranks:
        for layer in rank.stub_layers:
            for parameter in parameters(layer):
                for name, shard in held(layer, parameter):
                    columns = shard.source_columns or slice(0, 1)
                    place = shard.source_rows.start, columns.start
                    found = components(layer, parameter) if name == weight else ""
                    if place in seen or isinstance(found, str):
                        continue
                    seen.add(place)
                    for component, tensor in found.items():
                        _paste(whole, component, part(tensor, shard), shard, spec.shape)
    return {
        name: tensor.clone() if tensor.ndim < 2 else tensor[list(rows)].clone()
        for name, tensor in whole.items()
    }


def _print_parameter(merger: Merger, rank: int, layer: Any, parameter: str) -> None:
    found = components(layer, parameter)
    if isinstance(found, str):
        for name, shard in held(layer, parameter):
            merger.add_unreadable(name, rank, shard, found)
        return
    first = next(iter(found.values()))
    grid = "mxfp8" if "scales" in found else GRIDS[first.dtype]
    prints: dict[str, NDArray[np.uint64]] = {}
    for name, shard in held(layer, parameter):
        if shard.source_columns is None:
            merger.add_vector(name, rank, shard, first[shard.rows], grid)
            continue
        if not prints:
            for component, tensor in found.items():
                granule, start = component_of(component, shard.source_columns.start, tensor)
                flat = row_prints(tensor, granule=granule, first=start)
                prints[component] = flat.reshape(tensor.shape[:-1])
        nbytes = sum(part(tensor, shard).nbytes for tensor in found.values())
        rows = {component: part(array, shard) for component, array in prints.items()}
        merger.add(name, rank, shard, rows, grid, nbytes)


def _probed(layer: Any, matrix: str) -> NDArray[np.uint64]:
    """Row prints of what the serving path computes with, [rows] or [slots, rows]."""
    _, shard = next(held(layer, matrix))
    columns = shard.source_columns
    assert columns is not None, "matrices have columns"  # noqa: S101
    if layer.kind == "embedding":
        return value_print(layer.lookup(layer.operands()).to(torch.bfloat16))
    total: NDArray[np.uint64] | None = None
    width = torch.bfloat16.itemsize
    for first, rows in identity_rows(columns.stop - columns.start, torch.bfloat16):
        served = serving_product(layer, matrix, rows).to(torch.bfloat16).mT.contiguous()
        start = (columns.start + first) * width
        prints = value_print(served, first=start).reshape(served.shape[:-1])
        total = prints if total is None else total + prints
    assert total is not None, "a layer has input features"  # noqa: S101
    return total


def _outputs(sums: Mapping[tuple[str, str], torch.Tensor]) -> list[ProbeOutput]:
    groups: dict[tuple[str, str], list[tuple[str, torch.Tensor]]] = {}
    for (module, name), total in sums.items():
        owner = name.rpartition(".experts.")[2].partition(".")[0] if ".experts." in name else ""
        groups.setdefault((module, owner), []).append((name, total))
    return [
        ProbeOutput(
            module,
            tuple(name for name, _ in parts),
            torch.cat([total for _, total in parts]).T.to(torch.bfloat16).float().numpy(),
        )
        for (module, _), parts in groups.items()
    ]


def _paste(
    whole: dict[str, torch.Tensor],
    component: str,
    tensor: torch.Tensor,
    shard: Any,
    shape: tuple[int, ...],
) -> None:
    columns = shard.source_columns
    if columns is None:
        target = whole.setdefault(component, tensor.new_zeros(shape))
        target[shard.source_rows] = tensor
        return
    ratio = (columns.stop - columns.start) // tensor.shape[-1]
    if component not in whole:
        whole[component] = torch.zeros(shape[0], shape[1] // ratio, dtype=tensor.dtype)
    here = slice(columns.start // ratio, columns.stop // ratio)
    whole[component][shard.source_rows, here] = tensor


def _module(layer: Any, matrix: str) -> str:
    return str(layer.path) if len(layer.matrices) == 1 else f"{layer.path}.{matrix}"


def _differing(held_now: torch.Tensor | None, fresh: torch.Tensor) -> int:
    """Bytes that differ."""
    if held_now is None or held_now.shape != fresh.shape or held_now.dtype != fresh.dtype:
        return fresh.nbytes
    one, other = (tensor.contiguous().view(torch.uint8) for tensor in (held_now, fresh))
    return int((one != other).sum())


def _fill(tensor: torch.Tensor, pattern: int) -> None:
    tensor.copy_(torch.full_like(tensor.view(torch.uint8), pattern).view(tensor.dtype))
