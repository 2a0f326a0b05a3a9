"""Checkpoint folders: what a safetensors checkpoint holds, checked before anything loads it.

Only headers are read, so a folder of any size takes milliseconds. Nothing here runs code that
comes with a checkpoint, and pickles are never opened.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from syncguard._safetensors import TensorEntry, read_json, read_tensors
from syncguard.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = [
    "BLOCK",
    "QUANTIZATIONS",
    "Checkpoint",
    "TensorEntry",
    "looks_low_precision",
    "read_checkpoint",
    "require_blocks",
    "write_copy",
]

BLOCK: Final = 32
"""Weights along the reduction dimension that share one MXFP8 scale."""

QUANTIZATIONS: Final = ("int8", "mxfp8", "none")
"""How a learner may run its linear layers."""

_HIGH_PRECISION: Final = ("embed", "lm_head", "norm", "router", "gate")
"""Last module names, or parts of them, of 2-D weights that MXFP8 recipes leave alone."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder that passed `read_checkpoint`.

    Attributes:
        path: The folder.
        name: How the user called it.
        config: The content of its ``config.json``.
        tensors: Tensor name to what its file's header says.
    """

    path: Path
    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    @property
    def architecture(self) -> str:
        """The first of the architectures that the configuration names."""
        return str(self.config["architectures"][0])


def read_checkpoint(path: Path, *, name: str = "", quantization: str = "none") -> Checkpoint:
    """Check a checkpoint folder and read the headers of its safetensors files.

    Args:
        path: The folder, with ``config.json`` and either ``model.safetensors`` or an index and
            its shards.
        name: How the user called it; the path by default.
        quantization: With ``mxfp8``, in-features of the linear layers must divide into blocks.

    Returns:
        What the folder holds.

    Raises:
        UsageError: The folder cannot serve as a checkpoint; the text says why and what to do.
    """
    if quantization not in QUANTIZATIONS:
        raise UsageError(
            f"quantization: expected one of {', '.join(QUANTIZATIONS)}, got {quantization!r}"
        )
    if not path.is_dir():
        what = "a file" if path.exists() else "nothing"
        raise UsageError(
            f"model {str(path)!r}: expected a checkpoint folder, found {what}. Give the folder "
            f"that holds config.json and the safetensors files"
        )
    config = _read_config(path)
    checkpoint = Checkpoint(path, name or str(path), config, read_tensors(path))
    if quantization == "mxfp8":
        require_blocks(
            (weight, entry.shape)
            for weight, entry in checkpoint.tensors.items()
            if looks_low_precision(weight, entry.shape)
        )
    return checkpoint


def write_copy(
    checkpoint: Checkpoint, weights: Iterable[tuple[str, "torch.Tensor"]], folder: Path
) -> Checkpoint:
    """Write a checkpoint with the configuration of another one and weights of its own.

    Args:
        checkpoint: The other one.
        weights: Names and tensors.
        folder: An empty folder, which is filled.

    Returns:
        The new checkpoint; its tensors are listed as those of the other one.
    """
    from safetensors.torch import save_file

    shutil.copy(checkpoint.path / "config.json", folder)
    tensors = {name: tensor.contiguous() for name, tensor in weights}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return replace(checkpoint, path=folder)


def looks_low_precision(weight: str, shape: tuple[int, ...]) -> bool:
    """Tell from its name whether an MXFP8 recipe would quantize a weight.

    A guess by convention for use before a model exists; what a learner really ran is observed.
    """
    module = weight.removesuffix(".weight").rpartition(".")[2]
    high = module != "gate_proj" and any(part in module for part in _HIGH_PRECISION)
    return len(shape) > 1 and not high


def require_blocks(weights: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Refuse weights whose reduction dimension MXFP8 blocks do not divide.

    Args:
        weights: Name and shape of each weight that is to be quantized, reduction dimension last.

    Raises:
        UsageError: One or more do not divide; the text names them.
    """
    ragged = [(weight, shape) for weight, shape in weights if shape[-1] % BLOCK]
    if ragged:
        weight, shape = ragged[0]
        more = f" (and {len(ragged) - 1} more weights)" if len(ragged) > 1 else ""
        raise UsageError(
            f"weight {weight!r} of shape {list(shape)}{more}: MXFP8 needs in-features (dimension "
            f"{len(shape) - 1}) that are a multiple of {BLOCK}, got {shape[-1]}. Use a model whose "
            f"layer widths are multiples of {BLOCK}, or quantization 'none'"
        )


def _read_config(path: Path) -> Mapping[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        raise UsageError(
            f"model {str(path)!r}: config.json is missing. Give the folder that "
            f"`save_pretrained` wrote, not one above or below it"
        )
    config = read_json(file)
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures):
        raise UsageError(
            f"{str(file)!r}: expected 'architectures' with the name of a causal language model, "
            f"got {architectures!r}. Save the model with `save_pretrained`, which writes it"
        )
    if "quantization_config" in config:
        method = dict(config["quantization_config"] or {}).get("quant_method")
        raise UsageError(
            f"{str(file)!r}: the checkpoint is quantized already (quant_method {method!r}). A "
            f"learner starts from weights in bf16: give the checkpoint that it was made from"
        )
    if "auto_map" in config and not _known_natively(config.get("model_type")):
        raise UsageError(
            f"{str(file)!r}: the model brings its own code ('auto_map') and transformers does not "
            f"know model type {config.get('model_type')!r}. syncguard never runs code from a "
            f"checkpoint: use a model type that transformers implements, or a newer transformers"
        )
    return config


def _known_natively(model_type: object) -> bool:
    from syncguard._libraries import import_transformers

    return model_type in import_transformers().CONFIG_MAPPING
