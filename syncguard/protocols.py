"""The two sides of a sync: what an adapter of a learner or an engine must offer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.observations import (
    EngineLayer,
    GraphReads,
    LearnerLayer,
    ProbeOutput,
    ProbeTurn,
    QuantizedCanary,
    Rederivation,
    ServedRequest,
    StepReport,
    StoredTensor,
    SyncRecord,
    Unreadable,
    WeightPrint,
)
from syncguard.seams import Seams

__all__ = ["Engine", "EngineExtras", "Learner", "LearnerExtras", "lacking"]

_OPTIONAL: Final = {"probe_blocks", "quantize_canary"}
"""Checks that need these do not apply without them."""


class Learner(Protocol):
    """The trainer's model, whose policy the engine must serve."""

    def environment(self) -> Mapping[str, str]:
        """Names and versions of what the learner computes with."""

    def layers(self) -> Sequence[LearnerLayer]:
        """Every weight and persistent buffer, with the grid that the last forward really used."""

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What a sync sends: name and tensor in checkpoint layout, in the model's dtype."""

    def wire_names(self, weight: str) -> Sequence[str]:
        """Under which names a weight travels: its own, and of its scales if they are sent too.

        A tied weight that is sent under another name travels under none.
        """

    def quantize_canary(self) -> QuantizedCanary | None:
        """The canary through the quantizer of the forward; none if nothing is quantized."""

    def grid_tensors(self, weight: str) -> Mapping[str, torch.Tensor]:
        """The forward grid of one weight, in checkpoint layout.

        ``{"elements": float8_e4m3fn [N, K], "scales": uint8 [N, K // 32]}`` for MXFP8,
        ``{"elements": int8 [N, K], "scales": float32 [N, 1]}`` for INT8, ``{"values": tensor}``
        otherwise.

        Raises:
            KeyError: There is no such weight.
        """

    def dequantized(self, weight: str) -> torch.Tensor:
        """The values of the forward grid, in the model's dtype (exact for MXFP8 in bf16)."""

    def prints(self) -> Mapping[str, WeightPrint]:
        """Fingerprints of the forward grid of every weight that `layers` lists."""

    def value_prints(self) -> Mapping[str, NDArray[np.uint64]]:
        """`syncguard.fingerprint.value_print` of every dequantized weight with two dimensions.

        Of the weight, times the unit of its grid (`syncguard.grids.unit_of`, 1 but for INT8), as
        `syncguard.probes.narrowed` gives it.
        """

    def logprobs(
        self, sequences: Sequence[Sequence[int]], *, mode: str = "forward"
    ) -> list[NDArray[np.float64]]:
        """Log-probability of each token after the first, given those before it.

        Args:
            sequences: Token ids.
            mode: ``forward``: the learner's own forward; ``dequantized``: the same model in its
                dtype on the dequantized grid; ``float32``: the dequantized grid in float32;
                ``model``: the weights before quantization, in the model's dtype.
        """

    def step(self, learning_rate: float) -> StepReport:
        """Take one real optimizer step."""


class Engine(Protocol):
    """A sampler that can be observed and synchronized.

    Every observation is made where the tensors live and returns small values. An adapter that
    cannot make one raises `syncguard.errors.Unsupported` with the reason.
    """

    name: str

    @property
    def wire(self) -> str:
        """What a sync sends for low-precision weights.

        ``bf16``, which the engine quantizes itself, or elements and scales of ``mxfp8`` or
        ``int8``.
        """

    def environment(self) -> Mapping[str, str]:
        """Engine, version, device, kernels in use."""

    def layers(self) -> Sequence[EngineLayer]:
        """The layer table, read from the live modules' quantization methods and kernels."""

    def begin(self, number: int, version: str) -> None:
        """Open a sync session."""

    def send(self, bucket: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Send one bucket of the open session."""

    def finish(self) -> SyncRecord:
        """Close the session, let the engine post-process, and tell what happened."""

    def abandon(self, error: str) -> SyncRecord:
        """Give up the open session after an error; tell what had happened until then."""

    def poison(self, pattern: int) -> Mapping[str, int]:
        """Fill every readable weight, and tensors derived from it, with a byte pattern.

        Returns:
            Weight name to the number of bytes that were overwritten.
        """

    def weight_prints(self) -> Mapping[str, WeightPrint | Unreadable]:
        """Fingerprints of the canonical tensors, by the learner's names."""

    def probe_exact(self) -> Mapping[str, WeightPrint | Unreadable]:
        """Fingerprints of the values that each layer's serving path computes with.

        The serving path runs on rows of the identity matrix, times the unit of its grid; rows of
        the result are keyed like
        `syncguard.fingerprint.value_print` of the dequantized weight.
        """

    def probe_random(self, rows: int, seed: int) -> Sequence[ProbeOutput]:
        """Each linear layer's serving path on `syncguard.probes.random_rows`."""

    def probe_blocks(self, turns: Mapping[str, ProbeTurn]) -> Sequence[ProbeOutput]:
        """The named layers' serving paths, each on its `syncguard.probes.turn_rows`."""

    def rederive(self) -> Sequence[Rederivation]:
        """Derive every readable derived tensor again from its canonical tensors; compare."""

    def quantize_canary(self) -> QuantizedCanary | None:
        """The canary through the engine's quantizer and its kernel.

        None if the engine quantizes no weights itself.
        """

    def storage(self) -> Sequence[StoredTensor]:
        """Every tensor that can be reached from the model."""

    def graph_reads(self) -> GraphReads:
        """Which reachable tensors a short prefill and decode read."""

    def state(self) -> Mapping[str, int]:
        """A fingerprint of every tensor that can be reached from the model, by path."""

    def fetch_rows(self, weight: str, rows: Sequence[int]) -> Mapping[str, torch.Tensor]:
        """A few rows of a weight's canonical tensors, for a failure's evidence.

        A vector is given whole, whatever the rows.
        """

    def generate(
        self, prompts: Sequence[Sequence[int]], tokens: int, seed: int
    ) -> list[tuple[list[int], NDArray[np.float64]]]:
        """Sample continuations and score prompts and continuations together.

        Each continuation is of exactly so many ``tokens``, whatever token ends a text, and is drawn
        at temperature 1 from all tokens.

        Returns:
            Per prompt the whole sequence and the log-probability of each token after the first.
        """

    def close(self) -> None:
        """Release what the engine holds."""


class LearnerExtras(Protocol):
    """What a learner may offer besides; a check that needs it does not apply without it."""

    def seams(self) -> Seams:
        """Where a fault can be armed on the learner's side."""

    def state(self) -> Mapping[str, int]:
        """A fingerprint of every weight and persistent buffer, and of what a step moves besides."""

    def tempered(
        self, sequences: Sequence[Sequence[int]], temperatures: Sequence[float]
    ) -> list[NDArray[np.float64]]:
        """Log-probability of each token after the first in its own forward, at other temperatures.

        Args:
            sequences: Token ids.
            temperatures: What logits are divided by.

        Returns:
            Per sequence an array [tokens - 1, temperatures].
        """

    def checkpoint_state(self) -> Mapping[str, int]:
        """A fingerprint of every tensor that it started from; empty once it has been trained."""


class EngineExtras(Protocol):
    """What an engine may offer besides; a check that needs it does not apply without it."""

    def seams(self) -> Seams:
        """Where a fault can be armed on the engine's side."""

    def ranks_apart(self) -> bool:
        """Whether its ranks are in other processes, out of reach of `seams`."""

    def on_ranks(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function in the process of each rank, with the rank's observer first.

        Args:
            function: Importable there by its name; the observer's `seams` are those of its rank.
            arguments: Its further arguments, small values.

        Returns:
            The results in the order of ranks.
        """

    def version(self) -> str:
        """The version of the weights that the engine says it serves."""

    def cache_versions(self) -> Mapping[str, str]:
        """The version of the weights that computed each entry of the engine's caches."""

    def preserved(self) -> Mapping[str, int]:
        """A fingerprint of every reachable tensor that no sync brings, by path."""

    def served_requests(self) -> Sequence[ServedRequest]:
        """The requests that were answered since the engine started, oldest first."""

    def admits(self) -> bool:
        """Whether a request would be let in now."""

    def finalize(self) -> None:
        """Post-process what is loaded once more: it must change nothing."""

    def equivalent_faults(self) -> Mapping[str, str]:
        """Faults of the library that change nothing that this engine serves, with the reason."""


def lacking(made: object, protocol: type) -> list[str]:
    """Names that a protocol requires and an object does not have.

    Args:
        made: What should be a learner or an engine.
        protocol: `Learner` or `Engine`.
    """
    names = sorted(name for name in vars(protocol) if not name.startswith("_"))
    return [name for name in names if name not in _OPTIONAL and not hasattr(made, name)]
