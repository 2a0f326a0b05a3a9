"""A learner and an engine of a few weights that do as they are told, for tests of what runs them.

Their policy is a lookup: the logits of the next token are the head times the embedding of this
one, both sides on the learner's dequantized grid, so a healthy engine agrees to the last bit.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.fingerprint import fingerprint, value_print
from syncguard.grids import dequantize, quantize
from syncguard.observations import (
    EngineLayer,
    GraphReads,
    LearnerLayer,
    Loaded,
    ProbeOutput,
    ProbeTurn,
    Rederivation,
    StepReport,
    StoredTensor,
    SyncRecord,
    Unreadable,
    WeightPrint,
)
from syncguard.probes import random_rows, turn_rows
from syncguard.report import Report
from syncguard.verdict import Verdict
from tests.checks.factories import Tensors, grid_of, printed, served, values_of

KINDS = {"embed.weight": "embedding", "q.weight": "linear", "norm": "norm", "head.weight": "head"}
SHAPES = {"embed.weight": (12, 32), "q.weight": (8, 32), "norm": (32,), "head.weight": (12, 32)}
VOCABULARY = 12


def drawn(seed: int) -> dict[str, torch.Tensor]:
    """Random weights in bf16."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(s, generator=generator).bfloat16() for name, s in SHAPES.items()}


def on_grid(name: str, weight: torch.Tensor) -> Tensors:
    if KINDS[name] != "linear":
        return {"values": weight}
    elements, scales = quantize(weight)
    return {"elements": elements, "scales": scales}


@dataclass
class Calls:
    """Notes every call; one that is to fail raises what it is told to."""

    calls: list[str] = field(default_factory=list)
    failing: dict[str, BaseException | Callable[[], None]] = field(default_factory=dict)

    def note(self, name: str) -> None:
        self.calls.append(name)
        fault = self.failing.get(name)
        if isinstance(fault, BaseException):
            raise fault
        if fault is not None:
            fault()


class FakeLearner(Calls):
    """Implements `syncguard.protocols.Learner`."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.model = drawn(seed)
        self.steps = 0

    def environment(self) -> Mapping[str, str]:
        return {"learner": "fake"}

    def layers(self) -> list[LearnerLayer]:
        self.note("learner.layers")
        return [
            LearnerLayer(name, grid_of(self.grid_tensors(name)), kind, SHAPES[name])
            for name, kind in KINDS.items()
        ]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in self.model.items():
            self.note("weights")
            yield name, weight.clone()

    def wire_names(self, weight: str) -> Sequence[str]:
        return (weight,)

    def quantize_canary(self) -> None:
        """Nothing to compare."""

    def grid_tensors(self, weight: str) -> Tensors:
        return on_grid(weight, self.model[weight])

    def dequantized(self, weight: str) -> torch.Tensor:
        return values_of(self.grid_tensors(weight))

    def prints(self) -> dict[str, WeightPrint]:
        self.note("prints")
        return {name: printed(name, self.grid_tensors(name)) for name in SHAPES}

    def value_prints(self) -> dict[str, NDArray[np.uint64]]:
        self.note("value_prints")
        return {
            n: value_print(self.dequantized(n)) for n, shape in SHAPES.items() if len(shape) > 1
        }

    def logprobs(
        self, sequences: Sequence[Sequence[int]], *, mode: str = "forward"
    ) -> list[NDArray[np.float64]]:
        self.note(f"logprobs {mode}")
        values = {name: self.dequantized(name) for name in SHAPES}
        offset = 0.1 if mode == "dequantized" else 0.0
        return [scores(values, sequence) + offset for sequence in sequences]

    def step(self, learning_rate: float) -> StepReport:
        self.note("step")
        self.steps += 1
        self.model = drawn(1000 * self.steps)
        return StepReport(learning_rate, 0.5, 1.0, 1.0, 1.0)


class FakeEngine(Calls):
    """Implements `syncguard.protocols.Engine`."""

    name = "fake"
    wire = "bf16"

    def __init__(self, seed: int = 99) -> None:
        super().__init__()
        self.held = {name: on_grid(name, weight) for name, weight in drawn(seed).items()}
        self.kernels: dict[str, Tensors] = {}
        self.record: SyncRecord | None = None
        self.reported = ""
        self.fetched: list[tuple[str, list[int]]] = []
        self.scratch = torch.zeros(4)
        self.closed = False

    def environment(self) -> Mapping[str, str]:
        return {"engine": "fake"}

    def layers(self) -> list[EngineLayer]:
        self.note("layers")
        return [
            EngineLayer(n.removesuffix(".weight"), (n,), "M", "K", grid_of(t), grid_of(t))
            for n, t in self.held.items()
            if len(SHAPES[n]) > 1
        ]

    def begin(self, number: int, version: str) -> None:
        self.note("begin")
        self.record = SyncRecord(number, version)

    def send(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.note("send")
        assert self.record is not None
        self.record.buckets.append(tuple(name for name, _ in bucket))
        for name, weight in bucket:
            for component, tensor in on_grid(name, weight).items():
                self.held[name][component].copy_(tensor)
            row = Loaded(name, name, "", -1, weight.numel(), len(self.record.buckets) - 1)
            self.record.loaded.append(row)

    def finish(self) -> SyncRecord:
        self.note("finish")
        assert self.record is not None
        self.reported = self.record.served_version = self.record.version
        self.record.seconds = 0.25
        return self.record

    def abandon(self, error: str) -> SyncRecord:
        self.note("abandon")
        assert self.record is not None
        self.record.error, self.record.served_version = error, self.reported
        return self.record

    def poison(self, pattern: int) -> Mapping[str, int]:
        self.note(f"poison {pattern:#x}")
        for tensors in self.held.values():
            for tensor in tensors.values():
                tensor.view(torch.uint8).fill_(pattern)
        return {n: sum(t.nbytes for t in tensors.values()) for n, tensors in self.held.items()}

    def weight_prints(self) -> Mapping[str, WeightPrint | Unreadable]:
        self.note("weight_prints")
        return {name: printed(name, tensors) for name, tensors in self.held.items()}

    def probe_exact(self) -> Mapping[str, WeightPrint | Unreadable]:
        self.note("probe_exact")
        return {name: served(name, self._kernel(name)) for name in self._matrices()}

    def probe_random(self, rows: int, seed: int) -> Sequence[ProbeOutput]:
        self.note("probe_random")
        return [
            self._answer(name, random_rows(rows, 32, seed, torch.bfloat16), rounds=True)
            for name in self._matrices()
            if KINDS[name] != "embedding"
        ]

    def probe_blocks(self, turns: Mapping[str, ProbeTurn]) -> Sequence[ProbeOutput]:
        self.note("probe_blocks")
        return [
            self._answer(f"{module}.weight", turn_rows(turn, 32, torch.bfloat16))
            for module, turn in turns.items()
        ]

    def rederive(self) -> Sequence[Rederivation]:
        self.note("rederive")
        return [Rederivation("q.scales", ("q.weight",), 0, 8)]

    def quantize_canary(self) -> None:
        """Nothing to compare."""

    def storage(self) -> Sequence[StoredTensor]:
        self.note("storage")
        return [
            StoredTensor(
                f"{name}.{component}", "parameter", tensor.data_ptr(), 0, tensor.nbytes,
                tuple(tensor.shape), str(tensor.dtype), tuple(tensor.stride()),
            )
            for name, tensors in self.held.items()
            for component, tensor in tensors.items()
        ]  # fmt: skip

    def graph_reads(self) -> GraphReads:
        self.note("graph_reads")
        return GraphReads(frozenset(row.path for row in self.storage()), captured=True)

    def state(self) -> Mapping[str, int]:
        self.note("state")
        return {
            f"{name}.{component}": fingerprint(tensor)
            for name, tensors in self.held.items()
            for component, tensor in tensors.items()
        }

    def fetch_rows(self, weight: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        self.note("fetch_rows")
        self.fetched.append((weight, list(rows)))
        tensors = self.held[weight]
        return {n: t if t.ndim < 2 else t[list(rows)].clone() for n, t in tensors.items()}

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        self.note("generate")
        generator = np.random.default_rng(seed)
        values = {name: values_of(self._kernel(name)) for name in SHAPES}
        sequences = [
            [*prompt, *generator.integers(0, VOCABULARY, tokens).tolist()] for prompt in prompts
        ]
        return [(sequence, scores(values, sequence)) for sequence in sequences]

    def close(self) -> None:
        self.closed = True

    def _kernel(self, name: str) -> Tensors:
        return self.kernels.get(name, self.held[name])

    def _matrices(self) -> list[str]:
        return [name for name, shape in SHAPES.items() if len(shape) > 1]

    def _answer(self, name: str, rows: torch.Tensor, rounds: bool = False) -> ProbeOutput:
        low = rounds and "scales" in self._kernel(name)
        x = dequantize(*quantize(rows), dtype=torch.float32) if low else rows.float()
        out = (x @ values_of(self._kernel(name)).float().T).bfloat16().float()
        return ProbeOutput(name.removesuffix(".weight"), (name,), out.numpy())


@dataclass
class Heard:
    """A listener that keeps what it hears."""

    steps: list[tuple[str, int, int]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def step(self, text: str, done: int, total: int) -> None:
        self.steps.append((text, done, total))

    def verdict(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def finished(self, report: Report) -> None:
        self.reports.append(report)


def scores(values: Mapping[str, torch.Tensor], sequence: Sequence[int]) -> NDArray[np.float64]:
    """Log-probability of each token after the first."""
    embedded = values["embed.weight"].double()[list(sequence[:-1])]
    logits = embedded @ values["head.weight"].double().T
    chosen = logits.log_softmax(-1)[torch.arange(len(logits)), list(sequence[1:])]
    found: NDArray[np.float64] = chosen.numpy()
    return found


def by_check(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {verdict.check: verdict for verdict in verdicts}
