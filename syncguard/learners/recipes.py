"""How a learner's linear layers run in low precision: in training, and in what it wants served.

MXFP8 is trained in, and what a forward used is what the engine must serve. INT8 is for rollouts
only: the learner trains in bf16, and its weights are quantized on their way to the engine. Then
the policy to be served is the quantized one, activations of each token rounded too; the learner
runs it when it scores, and what it used there is its forward grid.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn

from syncguard.errors import UsageError
from syncguard.grids import int8_product, to_grid
from syncguard.learners.loading import lower_to_mxfp8
from syncguard.learners.naming import low_precision_modules
from syncguard.learners.observing import UsedGrid, watch

__all__ = ["RECIPES", "Recipe", "rollout_in_int8"]

Observing = AbstractContextManager[Mapping[str, UsedGrid]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to run linear layers.

    Attributes:
        grid: Key of `syncguard.grids.GRIDS`, of the layers in low precision; empty for none.
        name: What the report calls it; empty for plain bf16.
        libraries: Distributions that it needs besides torch and transformers.
        lower: Changes a model to train so; refuses one that cannot.
        observed: Opens a context in which forwards of a model run, with the parameters by name,
            that notes which weights they use in low precision.
        scored: Opens the context in which forwards are the policy to be served.
    """

    grid: str
    name: str
    libraries: tuple[str, ...]
    lower: Callable[[nn.Module], None]
    observed: Callable[[nn.Module, Mapping[str, torch.Tensor]], Observing]
    scored: Callable[[nn.Module], AbstractContextManager[Any]]


@contextmanager
def rollout_in_int8(model: nn.Module) -> Iterator[Mapping[str, UsedGrid]]:
    """Let the linear layers of a model compute as W8A8 kernels do, while the context is open.

    Head and routers stay as they are. Nothing here has gradients.

    Args:
        model: The transformers model, with weights in bf16.

    Yields:
        A mapping that fills as weights are used: name to the grid that the product used.
    """
    used: dict[str, UsedGrid] = {}
    layers = low_precision_modules(model)
    for path, layer in layers.items():
        vars(layer)["forward"] = partial(_rolled_out, f"{path}.weight", layer, used)
    try:
        yield used
    finally:
        for layer in layers.values():
            del vars(layer)["forward"]


def _rolled_out(
    name: str, layer: nn.Linear, used: dict[str, UsedGrid], x: torch.Tensor
) -> torch.Tensor:
    if name not in used:
        elements, scales = to_grid(layer.weight, "int8")
        assert scales is not None, "INT8 has scales"  # noqa: S101
        used[name] = UsedGrid(elements, scales)
    return int8_product(x, used[name].elements, used[name].scales, layer.bias)


def _require_layers(model: nn.Module) -> None:
    if not low_precision_modules(model):
        raise UsageError(
            f"model of class {type(model).__name__!r}: it has no linear layer to roll out in INT8 "
            f"(only torch.nn.Linear is quantized). Use another model, or quantization 'none'"
        )


def _watched(model: nn.Module, parameters: Mapping[str, torch.Tensor]) -> Observing:
    del model
    return watch(parameters)


def _nothing(model: nn.Module) -> AbstractContextManager[Any]:
    del model
    return nullcontext()


RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "int8": Recipe(
            grid="int8",
            name="bf16 training, W8A8 rollout as compressed-tensors rounds float32 weights",
            libraries=(),
            lower=_require_layers,
            observed=lambda model, _: rollout_in_int8(model),
            scored=rollout_in_int8,
        ),
        "mxfp8": Recipe(
            grid="mxfp8",
            name="torchao MXFP8_EMULATED_RCEIL",
            libraries=("torchao",),
            lower=lower_to_mxfp8,
            observed=_watched,
            scored=_nothing,
        ),
        "none": Recipe("", "", (), lambda model: None, _watched, _nothing),
    }
)
"""By the learner's quantization, as in `syncguard.checkpoints.QUANTIZATIONS`."""
