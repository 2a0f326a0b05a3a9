"""What adapters observe and checks judge: small plain values, never weights.

Observations are made where the tensors live (in the engine's worker, on each rank) and are the
only things that cross a process boundary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

__all__ = [
    "Alternatives",
    "BlockProbe",
    "ColdEngine",
    "EngineLayer",
    "GraphReads",
    "LearnerLayer",
    "Loaded",
    "Place",
    "Poisoned",
    "ProbeOutput",
    "ProbeReference",
    "ProbeTurn",
    "QuantizedCanary",
    "Rederivation",
    "Rotation",
    "Samples",
    "ServedRequest",
    "ShardPrint",
    "StepReport",
    "StoredTensor",
    "SyncRecord",
    "Unreadable",
    "WeightPrint",
]


@dataclass(frozen=True, slots=True)
class LearnerLayer:
    """How the learner's forward treats one weight.

    Attributes:
        weight: The weight's name in checkpoint layout.
        grid: The grid in which the forward really used it, observed (see `syncguard.grids`).
        kind: ``linear``, ``embedding``, ``head``, ``expert``, ``router``, ``norm``, ``bias`` or
            ``buffer``.
        shape: Its shape in checkpoint layout.
        tied_to: The name of the weight that shares its storage, or empty.
    """

    weight: str
    grid: str
    kind: str
    shape: tuple[int, ...]
    tied_to: str = ""


@dataclass(frozen=True, slots=True)
class EngineLayer:
    """How the live engine holds and computes one layer.

    Attributes:
        module: The engine's module path.
        parts: The learner's weights that it holds, in the order of its output rows.
        method: Class name of the live quantization method.
        kernel: Class name of the live kernel, or empty where there is none to tell.
        grid: The grid of the weights that the method and kernel compute with.
        activations: The grid that the kernel rounds activations to; the model's dtype if none.
        rank: The rank that answered.
    """

    module: str
    parts: tuple[str, ...]
    method: str
    kernel: str
    grid: str
    activations: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A rectangle of one of the learner's weights.

    Attributes:
        rows: First row, and the row after the last one. A vector is one row.
        columns: The same of columns.
        shape: Shape of the whole weight.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of the rectangle."""
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])

    def of(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """The rectangle of a component of the weight; scales have a column for several."""
        whole = tensor if tensor.ndim > 1 else tensor[None]
        width = self.shape[-1] // whole.shape[-1]
        first, last = (column // width for column in self.columns)
        return whole[self.rows[0] : self.rows[1], first:last]


@dataclass(frozen=True, slots=True, eq=False)
class ShardPrint:
    """What one rank holds of a weight.

    Attributes:
        rank: The rank.
        place: Its rectangle of the weight.
        rows: As in `WeightPrint`, of the rectangle's rows; positions are counted from the first
            column of the whole weight.
    """

    rank: int
    place: Place
    rows: dict[str, NDArray[np.uint64]]


@dataclass(frozen=True, slots=True, eq=False)
class WeightPrint:
    """Fingerprints of one weight, one 64-bit number per row and component.

    Attributes:
        weight: The learner's name.
        grid: The grid that the bytes are in.
        shape: Shape in checkpoint layout; rows are the first dimension (a vector is one row).
        rows: Component name (``elements`` and ``scales`` of a block grid, or ``values``) to a
            uint64 array with one fingerprint per row.
        nbytes: Bytes that the fingerprints cover.
        shards: What each rank holds of it, where several hold parts.
    """

    weight: str
    grid: str
    shape: tuple[int, ...]
    rows: dict[str, NDArray[np.uint64]]
    nbytes: int
    shards: tuple[ShardPrint, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A weight whose bytes cannot be read where it lives, and why."""

    weight: str
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class ProbeOutput:
    """What the serving path of one layer gave for the random probe.

    Attributes:
        module: The engine's module path.
        parts: As in `EngineLayer`.
        output: float32 array [rows, output features] in the order of ``parts``.
        places: For each part the rectangle that this rank's path multiplies with, the same columns
            for all; empty if that is all of each.
        rank: The rank that answered.
    """

    module: str
    parts: tuple[str, ...]
    output: NDArray[np.float32]
    places: tuple[Place, ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Rederivation:
    """One derived tensor compared with what its canonical tensors give when derived again.

    Attributes:
        path: Where the derived tensor is.
        parts: The learner's weights that it is derived from.
        differing: Bytes that differ.
        nbytes: Bytes compared.
    """

    path: str
    parts: tuple[str, ...]
    differing: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor that can be reached from the engine's model.

    Attributes:
        path: How it was reached; attributes by dots, containers by brackets, closures by
            ``<name>``.
        kind: ``parameter``, ``buffer`` or ``attribute``.
        storage: Address of its storage; equal addresses are aliases.
        offset: Bytes from the start of the storage.
        nbytes: Bytes of the tensor.
        shape: Its shape.
        dtype: Its dtype, without ``torch.``.
        stride: Its stride, in elements.
    """

    path: str
    kind: str
    storage: int
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphReads:
    """What a forward reads, and so what a captured graph of it would read.

    Attributes:
        paths: Paths of the storage table whose tensors the forward's operators took as inputs.
        captured: Whether the engine really holds captured or compiled graphs.
    """

    paths: frozenset[str]
    captured: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """One write that the engine's loader made.

    Attributes:
        weight: The name on the wire that caused it.
        parameter: The engine's parameter that received it.
        shard: Which part of a fused parameter; empty if it is not fused.
        expert: Which expert; -1 if there is none.
        numel: Elements that the message held.
        bucket: Number of the bucket, from 0.
        rank: The rank that loaded it.
    """

    weight: str
    parameter: str
    shard: str
    expert: int
    numel: int
    bucket: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that the engine answered.

    Attributes:
        version: The version of the weights that the engine reported then.
        sync: Number of the sync that was open meanwhile; 0 if there was none.
    """

    version: str
    sync: int


@dataclass(slots=True)
class SyncRecord:
    """The life of one sync, as the engine's side saw it.

    Attributes:
        number: Number of the sync, from 1.
        version: The weight version that was asked for.
        served_version: The version that the engine reports afterwards.
        buckets: Names per bucket, in the order of arrival.
        loaded: Writes that the loader made.
        unfolded: Parameters whose staged data had not been folded back when the sync ended.
        seconds: How long it took.
        error: What went wrong; empty if nothing did.
    """

    number: int
    version: str
    served_version: str = ""
    buckets: list[tuple[str, ...]] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    unfolded: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimizer step changed.

    Attributes:
        learning_rate: Of the step.
        loss: Of the step's batch.
        weights_changed: Share of model weights whose bytes changed.
        elements_changed: Share of element bytes of low-precision weights that changed.
        scales_changed: Share of their scale bytes that changed.
    """

    learning_rate: float
    loss: float
    weights_changed: float
    elements_changed: float
    scales_changed: float


@dataclass(frozen=True, slots=True)
class ProbeReference:
    """One layer's answer to the random probe, compared with an emulated healthy kernel.

    Attributes:
        module: The engine's module path.
        parts: As in `EngineLayer`.
        worst: Largest deviation from the emulation, in units of its rounding bound.
        error: Relative Frobenius error against unrounded activations.
        healthy: The same error of the emulation.
        nbytes: Bytes of the weights that took part.
    """

    module: str
    parts: tuple[str, ...]
    worst: float
    error: float
    healthy: float
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Poisoned:
    """What the engine held after it was poisoned, before the sync.

    Attributes:
        pattern: The byte.
        nbytes: Weight name to the number of bytes that were overwritten.
        prints: Fingerprints of the poisoned weights, those that can be read.
    """

    pattern: int
    nbytes: dict[str, int]
    prints: dict[str, WeightPrint]


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Tokens that the engine sampled, scored by both sides; float64 arrays of equal length.

    Attributes:
        sequences: Prompt and continuation of each sample.
        engine: The engine's log-probability of each token after the first.
        learner: The learner's forward on the same tokens.
        dequantized: The learner's model on the dequantized grid, in the model's dtype.
        float32: The same in float32.
        rounds_activations: Whether the engine rounds activations to the learner's grid.
        prompt_tokens: How many tokens of each sequence are its prompt.
    """

    sequences: tuple[tuple[int, ...], ...]
    engine: NDArray[np.float64]
    learner: NDArray[np.float64]
    dequantized: NDArray[np.float64]
    float32: NDArray[np.float64]
    rounds_activations: bool
    prompt_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Alternatives:
    """The tokens of `Samples` under the learner's policy at other temperatures.

    Attributes:
        temperatures: The temperatures.
        logprobs: Log-probabilities of each token after the first, float64 [tokens, temperatures].
    """

    temperatures: tuple[float, ...]
    logprobs: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedCanary:
    """The canary (`syncguard.grids.canary`) after one side's quantizer.

    Attributes:
        elements: float8_e4m3fn, of the canary's shape.
        scales: uint8 [rows, columns // 32].
        served: The values that this side computes with, of the canary's shape; none if its kernel
            was not asked.
    """

    elements: "torch.Tensor"
    scales: "torch.Tensor"
    served: "torch.Tensor | None"


@dataclass(frozen=True, slots=True, eq=False)
class ColdEngine:
    """What an engine holds that was started on the learner's weights.

    Attributes:
        state: As `syncguard.protocols.Engine.state` gives it.
        probe: As `syncguard.protocols.Engine.probe_exact` gives it.
    """

    state: dict[str, int]
    probe: dict[str, WeightPrint | Unreadable]


@dataclass(frozen=True, slots=True)
class BlockProbe:
    """One layer's answer to rows that are +-1 in one block, compared with the learner's sums.

    Attributes:
        module: The engine's module path.
        parts: As in `EngineLayer`.
        wrong: Sums that differ.
        outputs: Sums that were compared.
        where: Row and block of the first that differs; empty if none does.
    """

    module: str
    parts: tuple[str, ...]
    wrong: int
    outputs: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class ProbeTurn:
    """What a layer is probed with when it has its turn; a row for each block of its weight.

    Attributes:
        sums: Whether rows are +-1 in a block, whose sums are exact in a low-precision grid;
            else they are rows of the identity, one element of each block at a turn.
        number: Seed of the signs, or which element.
    """

    sums: bool
    number: int


@dataclass(frozen=True, slots=True)
class Rotation:
    """Which layers are probed at this sync, and which were lately.

    Attributes:
        chosen: Modules to probe at this sync, each with how often it has had its turn before.
        names: All weights that take turns.
        modules: Modules that take turns.
        covered: Modules that were probed within the last syncs, this one included.
        syncs: How many syncs that is: enough for every module to have its turn.
    """

    chosen: Mapping[str, int]
    names: tuple[str, ...]
    modules: int
    covered: int
    syncs: int

    @property
    def weights(self) -> int:
        """Weights that take turns."""
        return len(self.names)
