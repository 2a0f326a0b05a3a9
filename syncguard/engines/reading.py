"""Observations that any engine of torch modules allows, made where it lives.

An adapter tells how its engine names, serves and derives; nothing here returns a whole weight.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.engines.held import Held, by_product, dtype_of, grid_of
from syncguard.fingerprint import value_print
from syncguard.grids import SCALED_GRIDS, unit_of
from syncguard.observations import ProbeOutput, ProbeTurn, Rederivation, Unreadable, WeightPrint
from syncguard.probes import exact_prints, random_rows, turn_rows
from syncguard.shards import component_prints

__all__ = ["Reader"]

_IDS_PER_CALL: Final = 4096

Derive = Callable[[Any], Mapping[str, torch.Tensor]]
Serve = Callable[[torch.Tensor], torch.Tensor]


def _plain_grid(module: Any) -> str:
    return grid_of(dtype_of(module))


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads one live model.

    Attributes:
        held: The learner's weights in it.
        scales: What is added to a parameter's name to get that of its block scales.
        serve: The serving path of a product: ``[rows, K]`` to ``[rows, N]``, N all output rows of
            the module, or of the expert.
        derived: Derives a module's derived tensors again, by their names there; changes nothing.
            Those of stacked experts are stacked too, and named after their parameter.
        grid: The grid of the weights that a module computes with.
    """

    held: Sequence[Held]
    scales: str
    serve: Callable[[Held], Serve]
    derived: Derive
    grid: Callable[[Any], str] = _plain_grid

    def canonical(self, held: Held) -> dict[str, torch.Tensor]:
        """The readable tensors of one weight, in checkpoint layout; empty if there are none."""
        tensor = held.module._parameters[held.parameter]
        scales = held.module._parameters.get(f"{held.parameter}{self.scales}")
        if held.sealed:
            return {}
        if held.packed:
            return {"scales": _rows(scales, held)} if _readable(scales) else {}
        if not _readable(tensor):
            return {}
        if scales is None or tensor.element_size() != 1:
            return {"values": _rows(tensor, held)}
        return {"elements": _rows(tensor, held), "scales": _rows(scales, held)}

    def weight_prints(self) -> dict[str, WeightPrint | Unreadable]:
        """See `syncguard.protocols.Engine.weight_prints`."""
        prints: dict[str, WeightPrint | Unreadable] = {}
        for held in self.held:
            tensors = self.canonical(held)
            if not tensors:
                prints[held.weight] = Unreadable(held.weight, _why_unreadable(held))
                continue
            first = next(iter(tensors.values()))
            scales = tensors.get("scales")
            prints[held.weight] = WeightPrint(
                weight=held.weight,
                grid=grid_of(first.dtype) if scales is None else SCALED_GRIDS[scales.dtype],
                shape=(len(first), _features(held)) if held.packed else tuple(first.shape),
                rows={name: component_prints(name, t, held.place) for name, t in tensors.items()},
                nbytes=sum(t.numel() * t.element_size() for t in tensors.values()),
            )
        return prints

    def probe_exact(self) -> dict[str, WeightPrint | Unreadable]:
        """See `syncguard.protocols.Engine.probe_exact`."""
        prints: dict[str, WeightPrint | Unreadable] = {}
        for parts in by_product(self.held):
            module, kind = parts[0].module, parts[0].kind
            dtype, features = dtype_of(module), _features(parts[0])
            try:
                if kind == "embedding":
                    rows = _embedding_prints(module, dtype)
                else:
                    serve, (first, total) = self.serve(parts[0]), _columns(parts[0], features)
                    unit = unit_of(self.grid(module))
                    rows = exact_prints(serve, features, dtype, first=first, total=total, unit=unit)
            except (RuntimeError, ValueError) as error:
                why = f"its kernel: {error}"
                prints |= {held.weight: Unreadable(held.weight, why) for held in parts}
                continue
            for held in parts:
                mine = rows[_looked_up(held) if kind == "embedding" else held.rows]
                prints[held.weight] = WeightPrint(
                    weight=held.weight,
                    grid=grid_of(dtype),
                    shape=(mine.size, features),
                    rows={"values": mine},
                    nbytes=mine.size * features * dtype.itemsize,
                )
        return prints

    def probe_random(self, rows: int, seed: int) -> list[ProbeOutput]:
        """See `syncguard.protocols.Engine.probe_random`."""
        return self._probe(lambda _, features, dtype: random_rows(rows, features, seed, dtype))

    def probe_blocks(self, turns: Mapping[str, ProbeTurn]) -> list[ProbeOutput]:
        """See `syncguard.protocols.Engine.probe_blocks`."""

        def rows(held: Held, features: int, dtype: torch.dtype) -> torch.Tensor:
            turn = turns[held.served_by]
            unit = 1 if turn.sums else unit_of(self.grid(held.module))
            return turn_rows(turn, features, dtype) * unit

        return self._probe(rows, turns)

    def _probe(
        self,
        rows: Callable[[Held, int, torch.dtype], torch.Tensor],
        modules: Collection[str] | None = None,
    ) -> list[ProbeOutput]:
        """Run serving paths on chosen rows; embeddings multiply nothing and are left out."""
        outputs = []
        for parts in by_product(self.held):
            path, dtype = parts[0].served_by, dtype_of(parts[0].module)
            if parts[0].kind == "embedding" or (modules is not None and path not in modules):
                continue
            features = _features(parts[0])
            first, total = _columns(parts[0], features)
            x = rows(parts[0], total, dtype)[:, first : first + features].contiguous()
            y = self.serve(parts[0])(x).float()
            kept = torch.cat([y[:, held.rows] for held in parts], dim=1)
            places = tuple(held.place for held in parts if held.place is not None)
            names = tuple(held.weight for held in parts)
            outputs.append(ProbeOutput(path, names, kept.numpy(), places))
        return outputs

    def rederive(self) -> list[Rederivation]:
        """See `syncguard.protocols.Engine.rederive`."""
        results, fresh_of = [], _last(self.derived)
        for parts in by_product(self.held):
            first = parts[0]
            for name, fresh, now in _derived(first, fresh_of):
                differing = fresh.numel()
                if now is not None and now.shape == fresh.shape:
                    differing = int(torch.ne(now, fresh).sum())
                expert = f"[{first.expert}]" if first.expert >= 0 else ""
                results.append(
                    Rederivation(
                        path=f"{first.path}.{name}{expert}",
                        parts=tuple(held.weight for held in parts),
                        differing=differing * fresh.element_size(),
                        nbytes=fresh.numel() * fresh.element_size(),
                    )
                )
        return results

    def poison(self, pattern: int) -> dict[str, int]:
        """See `syncguard.protocols.Engine.poison`."""
        counts: dict[str, int] = {}
        fresh_of = _last(self.derived)
        for held in self.held:
            tensors = list(self.canonical(held).values())
            for tensor in tensors:
                tensor.view(torch.uint8).fill_(pattern)
            counts[held.weight] = sum(t.numel() * t.element_size() for t in tensors)
            for _, _, now in _derived(held, fresh_of) if held.kind != "plain" else ():
                if now is not None:
                    now.view(torch.uint8).fill_(pattern)
        return counts

    def fetch_rows(self, weight: str, rows: Sequence[int]) -> dict[str, torch.Tensor]:
        """See `syncguard.protocols.Engine.fetch_rows`."""
        held = next(held for held in self.held if held.weight == weight)
        return {
            name: tensor.clone() if tensor.ndim < 2 else tensor[list(rows)].clone()
            for name, tensor in self.canonical(held).items()
        }


def _derived(held: Held, fresh_of: Derive) -> list[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """Name of each tensor that is derived for a product, what it must hold, and what it is."""
    found = []
    for name, fresh in fresh_of(held.module).items():
        now = getattr(held.module, name, None)
        if held.expert < 0:
            found.append((name, fresh, now))
        elif name.startswith(held.parameter):
            found.append((name, fresh[held.expert], None if now is None else now[held.expert]))
    return found


def _last(derive: Derive) -> Derive:
    """The same, remembering the last module: all experts of a layer are derived at once."""
    remembered: list[tuple[Any, Mapping[str, torch.Tensor]]] = []

    def remembering(module: Any) -> Mapping[str, torch.Tensor]:
        if not remembered or remembered[0][0] is not module:
            remembered[:] = [(module, derive(module))]
        return remembered[0][1]

    return remembering


def _rows(tensor: torch.Tensor, held: Held) -> torch.Tensor:
    whole = tensor.data if held.expert < 0 else tensor.data[held.expert]
    return whole[held.rows]


def _readable(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    return tensor is not None and not tensor.is_meta and bool(tensor.numel())


def _why_unreadable(held: Held) -> str:
    if held.sealed or held.packed:
        return held.sealed or held.packed
    name = f"{held.path}.{held.parameter}"
    if held.module._parameters[held.parameter].is_meta:
        return f"{name} is on the meta device: a sync that ended in an error left it without data"
    return f"{name} has size 0: the kernel keeps a packed copy that cannot be read back"


def _embedding_prints(module: Any, dtype: torch.dtype) -> NDArray[np.uint64]:
    parts = []
    for first in range(0, module.org_vocab_size, _IDS_PER_CALL):
        ids = torch.arange(first, min(first + _IDS_PER_CALL, module.org_vocab_size))
        parts.append(value_print(module(ids).to(dtype)))
    return np.concatenate(parts)


def _features(held: Held) -> int:
    """Input features of a module on this rank; a layer whose inputs are whole names only those."""
    module = held.module
    if held.expert >= 0:
        return int(module._parameters[held.parameter].shape[-1])
    names = ("embedding_dim", "input_size_per_partition", "input_size")
    told = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    return int(module._parameters[held.parameter].shape[-1] if told is None else told)


def _columns(held: Held, features: int) -> tuple[int, int]:
    """Number of a module's first input feature in the whole layer, and how many that has."""
    if held.place is None:
        return 0, features
    return held.place.columns[0], held.place.shape[-1]


def _looked_up(held: Held) -> slice:
    """Rows of an embedding that this rank looks up: tokens that it has not, it asks others for."""
    return held.rows if held.place is None else slice(*held.place.rows)
