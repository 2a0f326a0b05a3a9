"""The learner: a transformers causal language model, by one of `syncguard.learners.recipes`."""

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from syncguard.checkpoints import read_checkpoint
from syncguard.fingerprint import fingerprint, row_prints, value_print
from syncguard.grids import GRIDS, canary, dequantize, from_grid, unit_columns, unit_of
from syncguard.learners.loading import load_model, lower_to_mxfp8
from syncguard.learners.naming import kinds, ties
from syncguard.learners.observing import UsedGrid, watch
from syncguard.learners.optimizing import Masters
from syncguard.learners.recipes import RECIPES
from syncguard.learners.scoring import score, tempered
from syncguard.learners.training import policy_gradient, shares_changed
from syncguard.observations import LearnerLayer, QuantizedCanary, StepReport, WeightPrint
from syncguard.probes import narrowed
from syncguard.seams import Seam, Seams

__all__ = ["LOGPROB_MODES", "TransformersLearner"]

LOGPROB_MODES: Final = ("forward", "dequantized", "float32", "model")
"""The modes of `TransformersLearner.logprobs`."""

_OBSERVED_TOKENS: Final = 4
_STEP_SEEDS: Final = 1_000_003  # seeds of steps lie so far apart that learners do not share them
_GRID_NAMES: Final = {grid.element_dtype: name for name, grid in GRIDS.items() if grid.plain}


class TransformersLearner:
    """A causal language model as a trainer holds it; implements `syncguard.protocols.Learner`.

    Args:
        path: A checkpoint folder.
        quantization: ``mxfp8``: linear layers train through torchao's emulated round-up recipe,
            while head, embedding, norms and routers stay as they are. ``int8``: it trains in bf16,
            and the same layers are rolled out in INT8 W8A8. ``none``: all in bf16.
        wire: What a sync sends for low-precision weights: the model's ``bf16``, which the engine
            quantizes, or elements and scales of the quantization's grid, by its name.
        seed: Of training batches, and of what the masters hold below bf16.

    Raises:
        UsageError: The checkpoint cannot serve, or a library is missing.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        quantization: str = "none",
        wire: str = "bf16",
        seed: int = 0,
    ) -> None:
        self.checkpoint = read_checkpoint(Path(path), quantization=quantization)
        self.quantization = quantization
        self._wire = wire
        self._seed = seed
        self._steps = 0
        self._recipe = RECIPES[quantization]
        self._model = load_model(self.checkpoint)
        self._recipe.lower(self._model)
        self._kinds = kinds(self._model)
        self._ties = ties(self._model)
        self._parameters: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        # Plain tensors that share memory with the model, so that steps show in them.
        self._plain = {
            name: _unwrapped(tensor) for name, tensor in self._model.state_dict().items()
        }
        self._masters: Masters | None = None
        self._observed: Mapping[str, UsedGrid] | None = None

    def environment(self) -> dict[str, str]:
        """Names and versions of what the learner computes with."""
        libraries = ["torch", "transformers", *self._recipe.libraries]
        found = {
            "name": "transformers",
            "architecture": self.checkpoint.architecture,
            "quantization": self.quantization,
            "device": "cpu",
            "python": platform.python_version(),
        }
        if self._recipe.name:
            found["recipe"] = self._recipe.name
        return found | {library: importlib.metadata.version(library) for library in libraries}

    def layers(self) -> list[LearnerLayer]:
        """Every weight and persistent buffer in model order, with its observed grid.

        The grid is the recipe's for a weight whose product in a forward ran on its operands, else
        that of the weight's dtype. A tied weight is listed under both names.
        """
        used = self._observe()
        return [
            LearnerLayer(
                weight=name,
                grid=self._recipe.grid if name in used else _dtype_grid(self._plain[name].dtype),
                kind=kind,
                shape=tuple(self._plain[name].shape),
                tied_to=self._ties.get(name, ""),
            )
            for name, kind in self._kinds.items()
        ]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What a sync sends: name and tensor in checkpoint layout, in model order.

        A tied weight comes once, under its first name. The tensors are copies: an engine that
        kept the model's own would follow each `step` without a sync.
        """
        for name in self._kinds:
            names = self.wire_names(name)
            if not names:
                continue
            if len(names) == 1:
                yield name, self._plain[name].clone()
            else:
                yield from zip(names, self.grid_tensors(name).values(), strict=True)

    def wire_names(self, weight: str) -> tuple[str, ...]:
        """Under which names a weight travels: its own, and that of its scales if they go too.

        A tied weight travels under its first name only.
        """
        if weight in self._ties:
            return ()
        if self._wire == self._recipe.grid and weight in self._observe():
            return (weight, f"{weight}_scale")
        return (weight,)

    def quantize_canary(self) -> QuantizedCanary | None:
        """The canary as the weight of a linear layer, in a forward like the model's."""
        if self.quantization != "mxfp8":
            return None
        weight = canary()
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        layer.weight = torch.nn.Parameter(weight)
        lower_to_mxfp8(torch.nn.ModuleDict({"canary": layer}))
        with torch.no_grad(), watch({"canary": layer.weight}) as used:
            layer(torch.ones(32, weight.shape[1], dtype=weight.dtype))
        grid = used["canary"]
        return QuantizedCanary(grid.elements, grid.scales, dequantize(grid.elements, grid.scales))

    def grid_tensors(self, weight: str) -> dict[str, torch.Tensor]:
        """The grid that the forward computed with for one weight, in checkpoint layout.

        Args:
            weight: Its name; a tied weight is known by both.

        Returns:
            ``{"elements": float8_e4m3fn [N, K], "scales": uint8 [N, K // 32]}`` for MXFP8, int8
            and float32 [N, 1] for INT8: the very operands of the forward's product. Else
            ``{"values": tensor}``. Only to be read.

        Raises:
            KeyError: There is no such weight.
        """
        grid = self._observe().get(weight)
        if grid is None:
            return {"values": self._plain[weight]}
        return {"elements": grid.elements, "scales": grid.scales}

    def dequantized(self, weight: str) -> torch.Tensor:
        """The values of one weight's forward grid in the model's dtype, exact for MXFP8.

        Raises:
            KeyError: There is no such weight.
        """
        return self._values(weight, self._plain[weight].dtype)

    def prints(self) -> dict[str, WeightPrint]:
        """Fingerprints of every weight's forward grid, tied names included.

        Scales are printed byte by byte, since their layouts keep as little as that together.
        """
        found = {}
        for layer in self.layers():
            tensors = self.grid_tensors(layer.weight)
            rows = {
                component: row_prints(tensor, granule=1 if component == "scales" else None)
                for component, tensor in tensors.items()
            }
            nbytes = sum(tensor.nbytes for tensor in tensors.values())
            found[layer.weight] = WeightPrint(layer.weight, layer.grid, layer.shape, rows, nbytes)
        return found

    def value_prints(self) -> dict[str, NDArray[np.uint64]]:
        """`value_print` of the values of every matrix, tied names included.

        They are what a serving path gives for rows of the identity times the unit of the grid,
        which is 1, and so the dequantized values, but for INT8.
        """
        return {
            name: value_print(narrowed(self._columns(name)))
            for name in self._kinds
            if self._plain[name].ndim > 1
        }

    def state(self) -> dict[str, int]:
        """A fingerprint of every weight and persistent buffer, tied names included."""
        return {name: fingerprint(tensor) for name, tensor in self._plain.items()}

    def logprobs(
        self, sequences: Sequence[Sequence[int]], *, mode: str = "forward"
    ) -> list[NDArray[np.float64]]:
        """Log-probability (nats) of each token after the first, given those before it.

        Args:
            sequences: Token ids, of any lengths.
            mode: ``forward``: the learner's own forward, of the policy that it wants served;
                ``dequantized``: the same model in its
                dtype on the dequantized grid; ``float32``: the dequantized grid in float32;
                ``model``: the weights before quantization, in the model's dtype.

        Returns:
            Per sequence an array one shorter than the sequence.

        Raises:
            ValueError: There is no such mode, or no such token.
        """
        if mode not in LOGPROB_MODES:
            raise ValueError(f"mode: expected one of {', '.join(LOGPROB_MODES)}, got {mode!r}")
        vocabulary = int(self._model.config.vocab_size)
        if mode == "forward":
            with self._recipe.scored(self._model):
                return score(self._forward, sequences, vocabulary)
        return score(self._forward_on(self._mode_values(mode)), sequences, vocabulary)

    def tempered(
        self, sequences: Sequence[Sequence[int]], temperatures: Sequence[float]
    ) -> list[NDArray[np.float64]]:
        """See `syncguard.protocols.LearnerExtras`."""
        with self._recipe.scored(self._model):
            vocabulary = int(self._model.config.vocab_size)
            return tempered(self._forward, sequences, vocabulary, temperatures)

    def step(self, learning_rate: float) -> StepReport:
        """Take one optimizer step: policy gradient on random tokens and advantages, AdamW.

        Forward and backward run in the learner's precision; the optimizer moves float32 masters,
        which are then rounded into the model's weights.

        Args:
            learning_rate: Of AdamW.

        Returns:
            The loss and what the step changed; the shares of elements and scales are 0 if no
            weight is in low precision.
        """
        before = self._observe()
        seed = self._seed + _STEP_SEEDS * (self._steps + 1)
        loss = policy_gradient(self._forward, int(self._model.config.vocab_size), seed)
        loss.backward()  # type: ignore[no-untyped-call]
        masters = self._with_masters()
        changed = 0
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                changed += masters.step(name, _unwrapped(gradient), learning_rate)
        self._steps += 1
        self._observed = None
        share = changed / sum(parameter.numel() for parameter in self._parameters.values())
        elements, scales = shares_changed(before, self._observe())
        return StepReport(learning_rate, float(loss.detach()), share, elements, scales)

    def perturb(self, seed: int, scale: float) -> None:
        """Add noise to every weight, through the masters.

        Args:
            seed: Of the noise.
            scale: Its standard deviation, as a multiple of the weight's root mean square.
        """
        masters = self._with_masters()
        generator = torch.Generator().manual_seed(seed)
        for name in self._parameters:
            masters.add_noise(name, scale, generator)
        self._observed = None

    def seams(self) -> Seams:
        """Where a fault can be armed on the learner's side."""
        observations = ("layers", "prints", "value_prints", "logprobs")
        return {
            "export": {"learner": Seam(self, "weights")},
            "observe": {f"learner.{name}": Seam(self, name) for name in observations},
            "step": {"learner": Seam(self, "step")},
        }

    def _observe(self) -> Mapping[str, UsedGrid]:
        """Run a forward on a few tokens, unless the weights are those of the last one."""
        if self._observed is None:
            observed = self._recipe.observed(self._model, self._parameters)
            with torch.no_grad(), observed as used:
                self._forward(torch.arange(_OBSERVED_TOKENS)[None])
            self._observed = used
        return self._observed

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model(input_ids=tokens, use_cache=False).logits
        return logits

    def _forward_on(self, values: dict[str, torch.Tensor]) -> Any:
        def forward(tokens: torch.Tensor) -> torch.Tensor:
            inputs = {"input_ids": tokens, "use_cache": False}
            output = torch.func.functional_call(self._model, values, (), inputs)
            logits: torch.Tensor = output.logits
            return logits

        return forward

    def _mode_values(self, mode: str) -> dict[str, torch.Tensor]:
        names = [name for name in self._kinds if name not in self._ties]
        if mode == "model":
            return {name: self._plain[name] for name in names}
        if mode == "dequantized":
            return {name: self.dequantized(name) for name in names}
        return {name: self._values(name, torch.float32) for name in names}

    def _values(self, weight: str, dtype: torch.dtype) -> torch.Tensor:
        grid = self._observe().get(weight)
        if grid is not None:
            return from_grid(grid.elements, grid.scales, self._recipe.grid, dtype)
        plain = self._plain[weight]
        return plain.to(dtype) if plain.is_floating_point() else plain

    def _columns(self, weight: str) -> torch.Tensor:
        grid = self._observe().get(weight)
        if grid is None or unit_of(self._recipe.grid) == 1:
            return self.dequantized(weight)
        columns = unit_columns(grid.elements, grid.scales, self._recipe.grid)
        return columns.to(self._plain[weight].dtype)

    def _with_masters(self) -> Masters:
        if self._masters is None:
            weights = {name: self._plain[name] for name in self._parameters}
            self._masters = Masters(weights, self._seed)
        return self._masters


def _dtype_grid(dtype: torch.dtype) -> str:
    return _GRID_NAMES.get(dtype, str(dtype).removeprefix("torch."))


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor inside a torchao wrapper, or the tensor itself, detached."""
    inner = getattr(tensor, "_data", None)
    return inner.detach() if isinstance(inner, torch.Tensor) else tensor.detach()
