"""Load a checkpoint as a causal language model, and put its linear layers in low precision."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from syncguard._libraries import import_torchao, import_transformers, quiet
from syncguard.checkpoints import Checkpoint, require_blocks
from syncguard.errors import UsageError
from syncguard.learners.experts import take_apart
from syncguard.learners.naming import low_precision_modules, ties

__all__ = ["load_model", "lower_to_mxfp8"]


def load_model(checkpoint: Checkpoint) -> Any:
    """Load a checkpoint in bf16.

    Args:
        checkpoint: From `syncguard.checkpoints.read_checkpoint`.

    Returns:
        The transformers model, on the CPU, in evaluation mode, with experts taken apart.

    Raises:
        UsageError: transformers cannot load it, makes another architecture of it, or the names
            of checkpoint and model differ.
    """
    transformers = import_transformers()
    try:
        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                checkpoint.path,
                dtype=torch.bfloat16,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise UsageError(
            f"model {checkpoint.name!r}: transformers {transformers.__version__} cannot load it "
            f"as a causal language model: {error}"
        ) from error
    if type(model).__name__ != checkpoint.architecture:
        raise UsageError(
            f"model {checkpoint.name!r}: its config.json names architecture "
            f"{checkpoint.architecture!r}, of which transformers {transformers.__version__} makes "
            f"a causal language model of class {type(model).__name__!r}. Use a checkpoint of a "
            f"causal language model"
        )
    take_apart(model)
    _compare_names(checkpoint, model)
    return model.eval()


def lower_to_mxfp8(model: nn.Module) -> None:
    """Let the products of linear layers run in MXFP8, forward and backward, by torchao's recipe.

    Raises:
        UsageError: No layer, or one that the recipe cannot quantize faithfully.
    """
    chosen = low_precision_modules(model)
    if not chosen:
        raise UsageError(
            f"model of class {type(model).__name__!r}: it has no linear layer to run in MXFP8 "
            f"(only torch.nn.Linear is quantized). Use another model, or quantization 'none'"
        )
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


def _compare_names(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Refuse a checkpoint that lacks a weight: transformers fills it with random numbers."""
    wanted, tied, stored = set(model.state_dict()), set(ties(model)), set(checkpoint.tensors)
    missing, unknown = sorted(wanted - tied - stored), sorted(stored - wanted)
    if any(".experts." in name for name in missing):
        raise UsageError(
            f"model {checkpoint.name!r}: transformers holds the experts of this mixture in another "
            f"way than the checkpoint{_first(missing)}. This learner takes apart gated experts "
            f"without biases, named gate_proj, up_proj and down_proj: use such a model"
        )
    if missing or unknown:
        raise UsageError(
            f"model {checkpoint.name!r}: the checkpoint and the model that transformers makes of "
            f"it differ: {len(missing)} weights are not in the checkpoint{_first(missing)}, "
            f"{len(unknown)} of its tensors are not in the model{_first(unknown)}. Save the "
            f"checkpoint again from the model that it is for"
        )


def _first(names: Sequence[str]) -> str:
    return f" (first {names[0]!r})" if names else ""
