"""The stub of a learner: its forward runs on the MXFP8 grid of its low-precision weights."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.fingerprint import fingerprint, row_prints, value_print
from syncguard.grids import canary, dequantize, quantize
from syncguard.learners.scoring import score, tempered, token_logprobs
from syncguard.observations import LearnerLayer, QuantizedCanary, StepReport, WeightPrint
from syncguard.seams import Seam, Seams
from syncguard.stubs.policy import forward
from syncguard.stubs.threads import inference, single_thread
from syncguard.stubs.topology import Topology, WeightSpec, weight_specs
from syncguard.stubs.usage import Recipe, Use, UsedGrid
from syncguard.stubs.weights import Masters, initial_weights

__all__ = ["LOGPROB_MODES", "StubLearner"]

LOGPROB_MODES: Final = ("forward", "dequantized", "float32", "model")

_GRIDS: Final = {torch.bfloat16: "bf16", torch.float32: "fp32"}
_BATCH: Final = (4, 12)
_OBSERVED_TOKENS: Final = 4
_TIED_HEAD: Final = "lm_head.weight"
_EMBEDDING: Final = "model.embed_tokens.weight"
_DRAFT: Final = "mtp.fc.weight"
_BALANCE_RATE: Final = 1e-3
"""How far a step moves a correction bias towards balanced experts."""
_KV_MARGIN: Final = 2 / 448
"""A cache scale over the largest key or value of the last batch."""


class StubLearner:
    """A learner of a few thousand weights, with everything a real one has.

    Args:
        topology: Of the model.
        seed: Of the weights and of the batches that it trains on.
        weights: A checkpoint to start from instead of random weights; copied.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        seed: int = 0,
        weights: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.topology = topology
        self.recipe = Recipe(topology)
        self._seed = seed
        self._specs = {spec.name: spec for spec in weight_specs(topology)}
        given = initial_weights(topology, seed) if weights is None else weights
        self._checkpoint = {name: given[name].clone() for name in self._specs}
        self.restart()

    def restart(self) -> None:
        """Start again from the checkpoint, without optimizer states."""
        self._weights = self.load_checkpoint(self._checkpoint)
        self._masters: Masters | None = None
        self._steps = 0
        self._grids: tuple[tuple[object, ...], dict[str, UsedGrid]] | None = None

    def load_checkpoint(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy a checkpoint, buffers included."""
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def checkpoint(self) -> Mapping[str, torch.Tensor]:
        """What the learner started from, by name; do not write into it."""
        return self._checkpoint

    def start_from(self, checkpoint: Mapping[str, torch.Tensor]) -> None:
        """Start again from another checkpoint of the same topology; copied."""
        self._checkpoint = {name: checkpoint[name].clone() for name in self._specs}
        self.restart()

    def checkpoint_state(self) -> Mapping[str, int]:
        """A fingerprint of every tensor of the checkpoint; empty once the weights have moved."""
        if self._masters is not None:
            return {}
        return {name: fingerprint(tensor) for name, tensor in self._checkpoint.items()}

    def environment(self) -> Mapping[str, str]:
        """See `syncguard.protocols.Learner`."""
        return {
            "learner": "stub",
            "topology": str(self.topology),
            "quantization": self.topology.quantization,
            "seed": str(self._seed),
            "device": "cpu",
            "torch": torch.__version__,
        }

    @inference()
    def layers(self) -> list[LearnerLayer]:
        """See `syncguard.protocols.Learner`; a tied head is listed under both names."""
        use = self._use("forward")
        self._run(use, torch.arange(_OBSERVED_TOKENS)[None] % self.topology.vocab)
        if self.topology.draft == "synced":
            use.product(self._weights[_EMBEDDING][:1], _DRAFT)
        rows = []
        for name, spec in self._specs.items():
            low = name in use.used and name in use.quantized
            grid = "mxfp8" if low else _GRIDS[self._weights[name].dtype]
            rows.append(LearnerLayer(name, grid, spec.kind, spec.shape))
        if self.topology.tied:
            tied = next(row for row in rows if row.weight == _EMBEDDING)
            rows.append(LearnerLayer(_TIED_HEAD, tied.grid, "head", tied.shape, _EMBEDDING))
        return rows

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What a sync sends; a tied weight once.

        With ``wire="mxfp8"`` a low-precision weight comes as its elements, and then its scales
        as ``<name>_scale``. Tensors in the model's dtype are its own, which `step` changes.
        """
        low = self._quantized() if self.topology.wire == "mxfp8" else {}
        for name, tensor in self._weights.items():
            grid = low.get(name)
            if grid is None:
                yield name, tensor
            else:
                yield name, grid.elements
                yield f"{name}_scale", grid.scales

    def wire_names(self, weight: str) -> tuple[str, ...]:
        """Under which names a weight travels: its own, and that of its scales if they go too."""
        if weight not in self._weights:
            return ()
        if self.topology.wire == "mxfp8" and weight in self._quantized():
            return (weight, f"{weight}_scale")
        return (weight,)

    def quantize(self, name: str, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Round one weight to its forward grid: elements and scales."""
        del name
        return quantize(weight)

    def quantize_canary(self) -> QuantizedCanary | None:
        """See `syncguard.protocols.Learner`."""
        if self.topology.quantization == "none":
            return None
        elements, scales = self.quantize("", canary())
        return QuantizedCanary(elements, scales, dequantize(elements, scales))

    def master(self, name: str) -> torch.Tensor:
        """The float32 master of one weight, before rounding to the model's dtype."""
        masters = self._with_masters().values()
        return masters[self._trained().index(name)]

    @inference()
    def grid_tensors(self, weight: str) -> dict[str, torch.Tensor]:
        """See `syncguard.protocols.Learner`."""
        grid = self._quantized().get(self._own(weight))
        if grid is None:
            return {"values": self._weights[self._own(weight)]}
        return {"elements": grid.elements, "scales": grid.scales}

    @inference()
    def dequantized(self, weight: str) -> torch.Tensor:
        """See `syncguard.protocols.Learner`."""
        name = self._own(weight)
        plain, grid = self._weights[name], self._quantized().get(name)
        return plain if grid is None else grid.values.to(plain.dtype)

    @inference()
    def prints(self) -> dict[str, WeightPrint]:
        """Fingerprints of every weight's forward grid, tied names included."""
        return {name: self._print(name, self.grid_tensors(name)) for name in self._names()}

    @inference()
    def value_prints(self) -> dict[str, NDArray[np.uint64]]:
        """`value_print` of the dequantized values of every matrix, tied names included."""
        matrices = [name for name in self._names() if self.dequantized(name).ndim > 1]
        return {name: value_print(self.dequantized(name)) for name in matrices}

    @inference()
    def state(self) -> dict[str, int]:
        """A fingerprint of every weight, persistent buffer and master."""
        found = {name: fingerprint(tensor) for name, tensor in self._weights.items()}
        if self._masters is not None:
            pairs = zip(self._trained(), self._masters.values(), strict=True)
            found |= {f"masters.{name}": fingerprint(master) for name, master in pairs}
        return found

    @inference()
    def logprobs(
        self, sequences: Sequence[Sequence[int]], *, mode: str = "forward"
    ) -> list[NDArray[np.float64]]:
        """See `syncguard.protocols.Learner`."""
        if mode not in LOGPROB_MODES:
            raise ValueError(f"mode: expected one of {', '.join(LOGPROB_MODES)}, got {mode!r}")
        use = self._use(mode)
        return score(lambda tokens: self._run(use, tokens), sequences, self.topology.vocab)

    @inference()
    def tempered(
        self, sequences: Sequence[Sequence[int]], temperatures: Sequence[float]
    ) -> list[NDArray[np.float64]]:
        """See `syncguard.protocols.LearnerExtras`."""
        use, vocabulary = self._use("forward"), self.topology.vocab
        return tempered(lambda tokens: self._run(use, tokens), sequences, vocabulary, temperatures)

    @single_thread()
    def step(self, learning_rate: float) -> StepReport:
        """Take one optimizer step: policy gradient on random tokens and advantages, AdamW.

        Correction biases move towards balanced experts, cache scales are calibrated again.
        """
        before = self._quantized()
        names = self._trained()
        leaves = {name: self._weights[name].detach().requires_grad_() for name in names}
        use = self._use("forward")
        use.plain = {**self._weights, **leaves}
        generator = torch.Generator().manual_seed(self._seed + 1_000_003 * self._steps)
        tokens = torch.randint(self.topology.vocab, _BATCH, generator=generator)
        advantages = torch.randn(_BATCH[0], 1, generator=generator)
        loss = -(advantages * token_logprobs(self._run(use, tokens), tokens)).mean()
        if self.topology.draft == "synced":
            loss = loss + use.product(leaves[_EMBEDDING], _DRAFT).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [
            torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves.values()
        ]
        changed = self._with_masters().step(gradients, learning_rate)
        total = sum(leaf.numel() for leaf in leaves.values())
        self._calibrate(generator)
        self._steps += 1
        elements, scales = _shares_changed(before, self._quantized())
        return StepReport(learning_rate, float(loss.detach()), changed / total, elements, scales)

    @inference()
    def perturb(self, scale: float, seed: int = 0) -> None:
        """Add noise of ``scale`` standard deviations to every weight, through the masters."""
        self._with_masters().add_noise(scale, seed)

    def seams(self) -> Seams:
        """Where a fault can be armed on the learner's side."""
        observations = "layers grid_tensors dequantized prints value_prints logprobs state"
        return {
            "exclusion": {"learner": Seam(self.recipe, "is_excluded")},
            "export": {"learner": Seam(self, "weights")},
            "init": {"learner": Seam(self, "load_checkpoint", build=True)},
            "observe": {f"learner.{name}": Seam(self, name) for name in observations.split()},
            "quantizer": {"learner": Seam(self, "quantize")},
            "step": {"learner": Seam(self, "step")},
        }

    def _names(self) -> list[str]:
        return [*self._specs, *([_TIED_HEAD] if self.topology.tied else [])]

    def _own(self, weight: str) -> str:
        return _EMBEDDING if self.topology.tied and weight == _TIED_HEAD else weight

    def _trained(self) -> list[str]:
        return [name for name, spec in self._specs.items() if spec.kind != "buffer"]

    def _with_masters(self) -> Masters:
        if self._masters is None:
            weights = [self._weights[name] for name in self._trained()]
            self._masters = Masters(weights, self._seed)
        return self._masters

    def _quantized(self) -> dict[str, UsedGrid]:
        """The grids of low-precision weights, made again when anything they come from changed."""
        key: tuple[object, ...] = (
            *(tensor._version for tensor in self._weights.values()),
            self._masters.revision if self._masters else 0,
            vars(self).get("quantize"),
            vars(self.recipe).get("is_excluded"),
        )
        if self._grids is None or self._grids[0] != key:
            self._grids = (
                key,
                {
                    name: self._grid(name)
                    for name, spec in self._specs.items()
                    if self._is_low(spec)
                },
            )
        return self._grids[1]

    def _is_low(self, spec: WeightSpec) -> bool:
        matrix = spec.name.endswith(".weight") and len(spec.shape) == 2
        return matrix and not self.recipe.is_excluded(spec.name.removesuffix(".weight"))

    def _grid(self, name: str) -> UsedGrid:
        elements, scales = self.quantize(name, self._weights[name])
        return UsedGrid(elements, scales, dequantize(elements, scales, torch.float32))

    def _print(self, name: str, tensors: Mapping[str, torch.Tensor]) -> WeightPrint:
        first = next(iter(tensors.values()))
        return WeightPrint(
            weight=name,
            grid="mxfp8" if "scales" in tensors else _GRIDS[first.dtype],
            shape=tuple(first.shape),
            rows={
                component: row_prints(tensor, granule=1 if component == "scales" else None)
                for component, tensor in tensors.items()
            },
            nbytes=sum(tensor.nbytes for tensor in tensors.values()),
        )

    def _use(self, mode: str) -> Use:
        grids = {} if mode == "model" else self._quantized()
        dtype = torch.float32 if mode == "float32" else torch.bfloat16
        return Use(self._weights, grids, dtype, rounds=mode == "forward")

    def _run(self, use: Use, tokens: torch.Tensor) -> torch.Tensor:
        return forward(self.topology, use, tokens)

    def _calibrate(self, generator: torch.Generator) -> None:
        """Move the trained buffers, which no gradient moves."""
        for name, spec in self._specs.items():
            buffer = self._weights[name]
            if name.endswith("e_score_correction_bias"):
                loads = torch.randn(spec.shape, generator=generator)
                buffer.sub_(_BALANCE_RATE * torch.sign(loads - loads.mean()))
            elif spec.kind == "buffer":
                largest = 4 + torch.rand(1, generator=generator)
                buffer.copy_(largest * _KV_MARGIN)


def _shares_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, float]:
    changed, total = [0, 0], [0, 0]
    for name in before.keys() & after.keys():
        for component, kind in enumerate(("elements", "scales")):
            one, other = (getattr(grids[name], kind).view(torch.uint8) for grids in (before, after))
            changed[component] += int((one != other).sum())
            total[component] += one.numel()
    return changed[0] / max(1, total[0]), changed[1] / max(1, total[1])
