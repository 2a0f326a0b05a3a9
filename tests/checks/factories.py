"""Small models on both sides, with real tensors and real prints, for tests of judgements."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.checks import Judgement
from syncguard.checks.differences import Difference
from syncguard.fingerprint import row_prints, value_print
from syncguard.grids import GRIDS, SCALED_GRIDS, from_grid, quantize
from syncguard.observations import (
    EngineLayer,
    GraphReads,
    LearnerLayer,
    Loaded,
    StoredTensor,
    SyncRecord,
    Unreadable,
    WeightPrint,
)
from syncguard.observing import SyncContext, View
from syncguard.verdict import Reason, Status

Tensors = dict[str, torch.Tensor]
Answer = WeightPrint | Unreadable

_GRID_NAMES = {grid.element_dtype: name for name, grid in GRIDS.items() if grid.plain}


def low(rows: int = 8, columns: int = 64, seed: int = 0) -> Tensors:
    """A random weight on the MXFP8 grid."""
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    elements, scales = quantize(values.to(torch.bfloat16))
    return {"elements": elements, "scales": scales}


def plain(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensors:
    """A random weight without scales."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return {"values": values.to(dtype)}


def values_of(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """What a forward computes with."""
    if "scales" in tensors:
        return from_grid(tensors["elements"], tensors["scales"], grid_of(tensors), torch.bfloat16)
    return tensors["values"]


def grid_of(tensors: Mapping[str, torch.Tensor]) -> str:
    if "scales" in tensors:
        return SCALED_GRIDS[tensors["scales"].dtype]
    return _GRID_NAMES[tensors["values"].dtype]


def printed(weight: str, tensors: Mapping[str, torch.Tensor]) -> WeightPrint:
    """The print of a weight's bytes."""
    rows = {
        name: row_prints(tensor, granule=1 if name == "scales" else None)
        for name, tensor in tensors.items()
    }
    shape = tuple(next(iter(tensors.values())).shape)
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    return WeightPrint(weight, grid_of(tensors), shape, rows, nbytes)


def served(weight: str, tensors: Mapping[str, torch.Tensor]) -> WeightPrint:
    """The exact probe's answer of a kernel that computes with these tensors."""
    values = values_of(tensors)
    rows = {"values": value_print(values)}
    return WeightPrint(weight, "bf16", tuple(values.shape), rows, values.nbytes)


@dataclass
class Model:
    """A learner, and an engine that holds the same unless a test changes it.

    Attributes:
        weights: Name to the learner's grid.
        kinds: Name to kind; by default told from the shape.
        tied: Name to the name that it is tied to.
        engine: The engine's key to what it holds; a key beyond ``@`` is a further copy.
        kernels: The engine's key to what its kernel computes with, where that is something else.
        hidden: Keys that the engine cannot read, and why.
        versions: Label to what the learner held at that time.
    """

    weights: dict[str, Tensors]
    kinds: dict[str, str] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    engine: dict[str, Tensors] = field(default_factory=dict)
    kernels: dict[str, Tensors] = field(default_factory=dict)
    hidden: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, Tensors]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name, tensors in self.weights.items():
            self.engine.setdefault(name, {k: t.clone() for k, t in tensors.items()})

    @property
    def layers(self) -> list[LearnerLayer]:
        rows = []
        for name, tensors in self.weights.items():
            shape = tuple(next(iter(tensors.values())).shape)
            kind = self.kinds.get(name, "linear" if len(shape) > 1 else "norm")
            rows.append(LearnerLayer(name, grid_of(tensors), kind, shape, self.tied.get(name, "")))
        return rows

    @property
    def engine_layers(self) -> list[EngineLayer]:
        return [
            an_engine_layer(key, grid_of(held))
            for key, held in self.engine.items()
            if next(iter(held.values())).ndim > 1
        ]

    def learner_prints(self) -> dict[str, WeightPrint]:
        return {name: printed(name, tensors) for name, tensors in self.weights.items()}

    def learner_values(self) -> dict[str, NDArray[np.uint64]]:
        return _matrix_values(self.weights)

    def weight_prints(self) -> dict[str, Answer]:
        return {
            key: Unreadable(_name(key), self.hidden[key])
            if key in self.hidden
            else printed(_name(key), held)
            for key, held in self.engine.items()
        }

    def exact_probe(self) -> dict[str, Answer]:
        return {
            key: served(_name(key), self.kernels.get(key, held))
            for key, held in self.engine.items()
            if next(iter(held.values())).ndim > 1 and key not in self.lost
        }

    def differences(self) -> list[Difference]:
        """As the observer makes them, from what it can fetch."""
        found: list[Difference] = self.view().get("differences")
        return found

    def view(self) -> View:
        side: Any = _Side(self)
        context = SyncContext(
            SyncRecord(1, "1"),
            (),
            GraphReads(frozenset(), captured=False),
            history={
                label: {name: printed(name, tensors) for name, tensors in held.items()}
                for label, held in self.versions.items()
            },
        )
        return View(side, side, context)

    def value_history(self) -> dict[str, dict[str, NDArray[np.uint64]]]:
        return {label: _matrix_values(held) for label, held in self.versions.items()}

    def change(self, key: str, component: str, index: tuple[int, ...], bits: int = 1) -> None:
        """Flip bits of one byte of what the engine holds."""
        octets = self.engine[key][component].view(torch.uint8)
        octets[index] ^= bits


@dataclass
class _Side:
    """Both sides of a view: only what the observer of differences asks for."""

    model: Model

    def prints(self) -> Mapping[str, WeightPrint]:
        return self.model.learner_prints()

    def weight_prints(self) -> Mapping[str, Answer]:
        return self.model.weight_prints()

    def grid_tensors(self, weight: str) -> Tensors:
        return self.model.weights[weight]

    def fetch_rows(self, key: str, rows: list[int]) -> Tensors:
        if "@" in key:
            raise KeyError(key)
        return {n: t if t.ndim < 2 else t[rows].clone() for n, t in self.model.engine[key].items()}


def a_model(**fields: Any) -> Model:
    """An embedding, two quantized layers, a router, a head and a norm."""
    weights = {
        "embed.weight": plain(6, 64, seed=1),
        "q.weight": low(8, 64, seed=2),
        "k.weight": low(4, 64, seed=3),
        "gate.weight": plain(4, 64, seed=4),
        "norm.weight": plain(64, seed=5),
        "lm_head.weight": plain(6, 64, seed=6),
    }
    kinds = {"embed.weight": "embedding", "gate.weight": "router", "lm_head.weight": "head"}
    return Model(weights, kinds, **fields)


def a_learner_layer(weight: str, grid: str = "mxfp8", kind: str = "linear") -> LearnerLayer:
    return LearnerLayer(weight, grid, kind, (8, 64))


def an_engine_layer(weight: str, grid: str = "mxfp8", **fields: Any) -> EngineLayer:
    module = weight.removesuffix(".weight")
    row = EngineLayer(module, (weight,), f"{grid.title()}Method", "Kernel", grid, grid)
    return replace(row, **fields)


def stored(path: str, storage: int, nbytes: int = 64, **fields: Any) -> StoredTensor:
    row = StoredTensor(path, "parameter", storage, 0, nbytes, (nbytes // 2,), "bfloat16", (1,))
    return replace(row, **fields)


def written(weight: str, **fields: Any) -> Loaded:
    row = Loaded(weight, f"engine.{weight}", "", -1, 64, 0)
    return replace(row, **fields)


def parts_of(judgement: Judgement) -> dict[str, str]:
    """The labelled lines of a message; what it says is under ``what``."""
    what, *lines = judgement.message.splitlines()
    labelled = dict(line.strip().split(": ", 1) for line in lines)
    return {"what": what, **labelled}


def is_complete(judgement: Judgement) -> bool:
    """Whether a failure's message has all of its parts."""
    wanted = {"what", "where", "expected", "got", "likely cause", "what to do"}
    return wanted <= {name for name, text in parts_of(judgement).items() if text}


def passes(judgement: Judgement, layers: int) -> bool:
    """Whether an answer is a full pass of so many layers, with nothing measured."""
    coverage = judgement.coverage
    assert judgement.message
    assert (judgement.measured, judgement.bound) == (0, 0)
    return judgement.status is Status.PASS and (
        coverage.layers_checked == coverage.layers_total == layers
    )


def fails(judgement: Judgement, subject: str, measured: int = 1) -> bool:
    """Whether an answer is a failure in full that names a subject."""
    assert is_complete(judgement)
    assert (judgement.measured, judgement.bound) == (measured, 0)
    assert subject in judgement.message
    return (judgement.status, judgement.subject) == (Status.FAIL, subject)


def silent(judgement: Judgement, reason: Reason) -> bool:
    """Whether an answer says that and why it is none."""
    assert judgement.message
    return (judgement.status, judgement.reason) == (Status.NOT_RUN, reason)


def a_record(**fields: Any) -> SyncRecord:
    """The record of sync 2, which went well."""
    return SyncRecord(2, "2", **{"served_version": "2", **fields})


def _name(key: str) -> str:
    return key.partition("@")[0]


def _matrix_values(weights: Mapping[str, Tensors]) -> dict[str, NDArray[np.uint64]]:
    values = {name: values_of(tensors) for name, tensors in weights.items()}
    return {name: value_print(held) for name, held in values.items() if held.ndim > 1}
