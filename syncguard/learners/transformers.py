"""The learner: a transformers causal language model, trained in bf16 or in torchao's MXFP8."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from syncguard.checkpoints import read_checkpoint, require_blocks
from syncguard.errors import UsageError
from syncguard.fingerprint import row_prints, value_print
from syncguard.grids import GRIDS, dequantize
from syncguard.learners._quiet import import_torchao, import_transformers, quiet
from syncguard.learners.naming import kinds, low_precision_modules, ties
from syncguard.learners.observing import UsedGrid, watch
from syncguard.learners.optimizing import Masters
from syncguard.learners.scoring import score, token_logprobs
from syncguard.observations import LearnerLayer, StepReport, WeightPrint

__all__ = ["LOGPROB_MODES", "TransformersLearner"]

LOGPROB_MODES: Final = ("forward", "dequantized", "float32", "model")
"""The modes of `TransformersLearner.logprobs`."""

_OBSERVED_TOKENS: Final = 4
_BATCH: Final = (4, 16)  # sequences and tokens of a training step; 64 tokens are two blocks
_GRID_NAMES: Final = {grid.element_dtype: name for name, grid in GRIDS.items() if grid.plain}


class TransformersLearner:
    """A causal language model as a trainer holds it; implements `syncguard.protocols.Learner`.

    Args:
        path: A checkpoint folder.
        quantization: ``mxfp8``: linear layers train through torchao's emulated round-up recipe,
            while head, embedding, norms and routers stay as they are. ``none``: all in bf16.
        seed: Of training batches and of what the masters hold below bf16.

    Raises:
        UsageError: The checkpoint cannot serve, or a library is missing.
    """

    def __init__(
        self, path: str | Path, *, quantization: str = "none", seed: int = 0
    ) -> None:
        self.checkpoint = read_checkpoint(Path(path), quantization=quantization)
        self.quantization = quantization
        self._seed = seed
        self._steps = 0
        self._model = _load(self.checkpoint.path)
        if quantization == "mxfp8":
            _lower(self._model)
        self._kinds = kinds(self._model)
        self._ties = ties(self._model)
        self._parameters = dict(self._model.named_parameters())
        self._buffers = {
            name: tensor
            for name, tensor in self._model.state_dict().items()
            if self._kinds[name] == "buffer"
        }
        self._masters: Masters | None = None
        self._observed: Mapping[str, UsedGrid | None] | None = None
        _compare_names(self.checkpoint.tensors, self._parameters, self._buffers, self._ties)

    def environment(self) -> Mapping[str, str]:
        """Names and versions of what the learner computes with."""
        found = {
            "learner": "transformers",
            "architecture": self.checkpoint.architecture,
            "quantization": self.quantization,
            "device": "cpu",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": str(import_transformers().__version__),
        }
        if self.quantization == "mxfp8":
            import torchao

            found["torchao"] = str(torchao.__version__)
            found["recipe"] = "MXFP8_EMULATED_RCEIL"
        return found

    def layers(self) -> list[LearnerLayer]:
        """Every weight and persistent buffer in model order, with its observed grid.

        The grid is ``mxfp8`` for a weight whose product in a forward ran on MXFP8 operands, else
        that of its dtype. A tied weight is listed under both names.
        """
        used = self._observe()
        return [
            LearnerLayer(
                weight=name,
                grid="mxfp8" if used.get(name) else _GRID_NAMES[self._plain(name).dtype],
                kind=kind,
                shape=tuple(self._plain(name).shape),
                tied_to=self._ties.get(name, ""),
            )
            for name, kind in self._kinds.items()
        ]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What a sync sends: name and tensor in checkpoint layout, in model order.

        A tied weight comes once, under its first name. The tensors are the model's own, which
        the next `step` changes: copy what must last.
        """
        for name in self._kinds:
            if name not in self._ties:
                yield name, self._plain(name)

    def buckets(self, max_bytes: int) -> Iterator[list[tuple[str, torch.Tensor]]]:
        """Partition `weights` into consecutive buckets.

        Args:
            max_bytes: Size of a bucket; a larger weight gets a bucket of its own.

        Raises:
            ValueError: ``max_bytes`` is not positive.
        """
        if max_bytes <= 0:
            raise ValueError(f"a bucket needs a positive number of bytes, got {max_bytes}")
        bucket: list[tuple[str, torch.Tensor]] = []
        room = max_bytes
        for name, tensor in self.weights():
            if bucket and tensor.nbytes > room:
                yield bucket
                bucket, room = [], max_bytes
            bucket.append((name, tensor))
            room -= tensor.nbytes
        if bucket:
            yield bucket

    def grid_tensors(self, weight: str) -> dict[str, torch.Tensor]:
        """The grid that the forward computed with for one weight, in checkpoint layout.

        Args:
            weight: Its name; a tied weight is known by both.

        Returns:
            ``{"elements": float8_e4m3fn [N, K], "scales": uint8 [N, K // 32]}`` for MXFP8: the
            very operands of the forward's product. Else ``{"values": tensor}``.

        Raises:
            KeyError: There is no such weight.
        """
        grid = self._observe().get(weight)
        if grid is None:
            return {"values": self._plain(weight)}
        return {"elements": grid.elements, "scales": grid.scales}

    def dequantized(self, weight: str) -> torch.Tensor:
        """The values of one weight's forward grid in the model's dtype, exact for MXFP8.

        Raises:
            KeyError: There is no such weight.
        """
        return self._values(weight, self._plain(weight).dtype)

    def prints(self) -> dict[str, WeightPrint]:
        """Fingerprints of every weight's forward grid, tied names included."""
        found = {}
        for layer in self.layers():
            tensors = self.grid_tensors(layer.weight)
            found[layer.weight] = WeightPrint(
                weight=layer.weight,
                grid=layer.grid,
                shape=layer.shape,
                rows={
                    # Scale layouts keep as little as one byte together.
                    component: row_prints(tensor, granule=1 if component == "scales" else None)
                    for component, tensor in tensors.items()
                },
                nbytes=sum(tensor.nbytes for tensor in tensors.values()),
            )
        return found

    def value_prints(self) -> dict[str, NDArray[np.uint64]]:
        """`value_print` of the dequantized values of every matrix, tied names included."""
        return {
            name: value_print(self.dequantized(name))
            for name in self._kinds
            if self._plain(name).ndim > 1
        }

    def logprobs(
        self, sequences: Sequence[Sequence[int]], *, mode: str = "forward"
    ) -> list[NDArray[np.float64]]:
        """Log-probability (nats) of each token after the first, given those before it.

        Args:
            sequences: Token ids, of any lengths.
            mode: ``forward``: the learner's own forward; ``dequantized``: the same model in its
                dtype on the dequantized grid; ``float32``: the dequantized grid in float32;
                ``model``: the weights before quantization, in the model's dtype.

        Returns:
            Per sequence an array one shorter than the sequence.

        Raises:
            ValueError: There is no such mode.
        """
        if mode not in LOGPROB_MODES:
            raise ValueError(f"mode: expected one of {', '.join(LOGPROB_MODES)}, got {mode!r}")
        if mode == "forward":
            return score(self._forward, sequences)
        names = [name for name in self._kinds if name not in self._ties]
        if mode == "model":
            values = {name: self._plain(name) for name in names}
        elif mode == "dequantized":
            values = {name: self.dequantized(name) for name in names}
        else:
            values = {name: self._values(name, torch.float32) for name in names}

        def forward(tokens: torch.Tensor) -> torch.Tensor:
            return _logits(torch.func.functional_call(self._model, values, (), _inputs(tokens)))

        return score(forward, sequences)

    def step(self, learning_rate: float) -> StepReport:
        """Take one optimizer step: policy gradient on random tokens and advantages, AdamW.

        Forward and backward run in the learner's precision; the optimizer moves float32 masters,
        which are then rounded into the model's weights.

        Args:
            learning_rate: Of AdamW.

        Returns:
            The loss and what the step changed.
        """
        before = self._observe()
        loss = self._backward()
        masters = self._with_masters()
        changed = total = 0
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            total += parameter.numel()
            if gradient is not None:
                changed += masters.step(name, _unwrapped(gradient), learning_rate)
        self._steps += 1
        self._observed = None
        elements, scales = _shares_changed(before, self._observe())
        return StepReport(learning_rate, loss, changed / max(1, total), elements, scales)

    def perturb(self, scale: float, seed: int = 0) -> None:
        """Add noise of ``scale`` standard deviations to every weight, through the masters."""
        masters = self._with_masters()
        generator = torch.Generator().manual_seed(seed)
        for name in self._parameters:
            masters.add_noise(name, scale, generator)
        self._observed = None

    def _observe(self) -> Mapping[str, UsedGrid | None]:
        """Run a forward on a few tokens, unless the weights are those of the last one."""
        if self._observed is None:
            with torch.no_grad(), watch(self._parameters) as used:
                self._forward(torch.arange(_OBSERVED_TOKENS)[None])
            self._observed = dict(used)
        return self._observed

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return _logits(self._model(**_inputs(tokens)))

    def _backward(self) -> float:
        generator = torch.Generator().manual_seed(self._seed + 1_000_003 * self._steps)
        tokens = torch.randint(int(self._model.config.vocab_size), _BATCH, generator=generator)
        advantages = torch.randn(_BATCH[0], 1, generator=generator)
        logprobs = token_logprobs(self._forward(tokens).float(), tokens)
        loss = -(advantages * logprobs).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _with_masters(self) -> Masters:
        if self._masters is None:
            weights = {name: self._plain(name) for name in self._parameters}
            self._masters = Masters(weights, self._seed)
        return self._masters

    def _plain(self, weight: str) -> torch.Tensor:
        name = self._ties.get(weight, weight)
        return self._buffers[name] if name in self._buffers else _unwrapped(self._parameters[name])

    def _values(self, weight: str, dtype: torch.dtype) -> torch.Tensor:
        grid = self._observe().get(weight)
        if grid is None:
            plain = self._plain(weight)
            return plain.to(dtype) if plain.is_floating_point() else plain
        return dequantize(grid.elements, grid.scales, dtype)


def _load(path: Path) -> Any:
    transformers = import_transformers()
    try:
        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path,
                dtype=torch.bfloat16,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise UsageError(
            f"model {str(path)!r}: transformers {transformers.__version__} cannot load it as a "
            f"causal language model: {error}"
        ) from error
    return model.eval()


def _lower(model: nn.Module) -> None:
    """Let torchao wrap the weights of linear layers so that their products run in MXFP8."""
    chosen = low_precision_modules(model)
    require_blocks((f"{path}.weight", tuple(layer.weight.shape)) for path, layer in chosen.items())
    biased = [path for path, layer in chosen.items() if layer.bias is not None]
    if biased:
        raise UsageError(
            f"layer {biased[0]!r} (one of {len(biased)}) has a bias, which torchao's MXFP8 linear "
            f"drops without a word. Use a model without biases, or quantization 'none'"
        )
    quantize_, recipe = import_torchao()
    layers = {id(layer) for layer in chosen.values()}
    quantize_(model, recipe, filter_fn=lambda module, _: id(module) in layers)


def _compare_names(
    stored: Mapping[str, object],
    parameters: Mapping[str, object],
    buffers: Mapping[str, object],
    tied: Mapping[str, str],
) -> None:
    """Refuse a checkpoint that lacks a weight: transformers would fill it with random numbers."""
    missing = sorted({*parameters, *buffers} - {*stored})
    unknown = sorted({*stored} - {*parameters, *buffers, *tied})
    if missing or unknown:
        raise UsageError(
            f"the checkpoint and the model that transformers makes of it differ: {len(missing)} "
            f"weights are not in the checkpoint{_first(missing)}, {len(unknown)} of its tensors "
            f"are not in the model{_first(unknown)}. Save it again from the model it is for"
        )


def _first(names: Sequence[str]) -> str:
    return f" (first {names[0]!r})" if names else ""


def _shares_changed(
    before: Mapping[str, UsedGrid | None], after: Mapping[str, UsedGrid | None]
) -> tuple[float, float]:
    changed, total = [0, 0], [0, 0]
    for name, old in before.items():
        new = after.get(name)
        if old is None or new is None:
            continue
        pairs = ((old.elements, new.elements), (old.scales, new.scales))
        for component, (one, other) in enumerate(pairs):
            changed[component] += int((one.view(torch.uint8) != other.view(torch.uint8)).sum())
            total[component] += one.numel()
    return changed[0] / max(1, total[0]), changed[1] / max(1, total[1])


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor inside a torchao wrapper, or the tensor itself, detached."""
    inner = getattr(tensor, "_data", None)
    return inner.detach() if isinstance(inner, torch.Tensor) else tensor.detach()


def _inputs(tokens: torch.Tensor) -> dict[str, Any]:
    return {"input_ids": tokens, "use_cache": False}


def _logits(output: Any) -> torch.Tensor:
    logits: torch.Tensor = output.logits
    return logits
