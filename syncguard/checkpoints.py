"""Checkpoint folders: what a safetensors checkpoint holds, checked before anything loads it.

Only headers are read, so a folder of any size takes milliseconds. Nothing here runs code that
comes with a checkpoint, and pickles are never opened.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, NoReturn

from syncguard.errors import UsageError

__all__ = [
    "BLOCK",
    "QUANTIZATIONS",
    "Checkpoint",
    "TensorEntry",
    "looks_low_precision",
    "read_checkpoint",
    "require_blocks",
]

BLOCK: Final = 32
"""Weights along the reduction dimension that share one MXFP8 scale."""

QUANTIZATIONS: Final = ("mxfp8", "none")
"""How a learner may run its linear layers."""

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_LENGTH_BYTES: Final = 8
_LONGEST_HEADER: Final = 100_000_000  # the limit of the safetensors format
_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16,
    "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip
_HIGH_PRECISION: Final = ("embed", "lm_head", "norm", "router", "gate")
"""Last module names, or parts of them, of 2-D weights that MXFP8 recipes leave alone."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a checkpoint: the file that holds it, its dtype and shape.

    Attributes:
        file: Name of the file in the checkpoint folder.
        dtype: As safetensors writes it, such as ``BF16``.
        shape: In checkpoint layout, [out features, in features] for a linear layer.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]


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
    checkpoint = Checkpoint(path, name or str(path), config, _read_tensors(path))
    if quantization == "mxfp8":
        require_blocks(
            (weight, entry.shape)
            for weight, entry in checkpoint.tensors.items()
            if looks_low_precision(weight, entry.shape)
        )
    return checkpoint


def looks_low_precision(weight: str, shape: tuple[int, ...]) -> bool:
    """Tell from its name whether an MXFP8 recipe would quantize a weight.

    A guess by convention for use before a model exists; what a learner really ran is observed.
    """
    module = weight.removesuffix(".weight").rpartition(".")[2]
    if len(shape) < 2 or (weight.endswith("bias") and len(shape) == 1):
        return False
    return module == "gate_proj" or not any(part in module for part in _HIGH_PRECISION)


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
    config = _read_json(file)
    architectures = config.get("architectures")
    if not (isinstance(architectures, list) and architectures):
        raise UsageError(
            f"{str(file)!r}: expected 'architectures' with the name of a causal language model, "
            f"got {architectures!r}. Save the model with `save_pretrained`, which writes it"
        )
    if "auto_map" in config and not _known_natively(config.get("model_type")):
        raise UsageError(
            f"{str(file)!r}: the model brings its own code ('auto_map') and transformers does not "
            f"know model type {config.get('model_type')!r}. syncguard never runs code from a "
            f"checkpoint: use a model type that transformers implements, or a newer transformers"
        )
    return config


def _known_natively(model_type: object) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return model_type in CONFIG_MAPPING_NAMES


def _read_tensors(path: Path) -> Mapping[str, TensorEntry]:
    if (path / _INDEX).is_file():
        return _read_indexed(path)
    if (path / _SINGLE).is_file():
        return _read_header(path / _SINGLE)
    pickles = sorted(file.name for suffix in ("bin", "pt", "pth") for file in path.glob(f"*.{suffix}"))
    found = f"only pickles ({', '.join(pickles)}), which can run code when loaded" if pickles else "none"
    raise UsageError(
        f"model {str(path)!r}: expected weights in {_SINGLE} or {_INDEX}, found {found}. Save them "
        f"as safetensors with `save_pretrained`"
    )


def _read_indexed(path: Path) -> Mapping[str, TensorEntry]:
    placed = _read_json(path / _INDEX).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise UsageError(
            f"{str(path / _INDEX)!r}: expected 'weight_map' with a file for each tensor, got "
            f"{type(placed).__name__}. Save the checkpoint again"
        )
    files = sorted(set(map(str, placed.values())))
    missing = [file for file in files if not (path / file).is_file()]
    if missing:
        raise UsageError(
            f"model {str(path)!r}: {len(missing)} of {len(files)} files that {_INDEX} names are "
            f"missing: {', '.join(missing[:4])}. Finish the download or copy"
        )
    tensors = {name: entry for file in files for name, entry in _read_header(path / file).items()}
    lost = [name for name, file in placed.items() if name not in tensors or tensors[name].file != file]
    if lost:
        raise UsageError(
            f"model {str(path)!r}: {len(lost)} of {len(placed)} tensors are not in the files that "
            f"{_INDEX} names, first {lost[0]!r} in {placed[lost[0]]!r}. The index and the files are "
            f"of different checkpoints: copy both again"
        )
    return tensors


def _read_header(file: Path) -> Mapping[str, TensorEntry]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES + length or not 2 <= length <= _LONGEST_HEADER:
            _damaged(file, f"a header of at most {size - _LENGTH_BYTES} bytes", f"{length} bytes")
        text = stream.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        tensors = {
            name: TensorEntry(file.name, str(item["dtype"]), tuple(map(int, item["shape"])))
            for name, item in header.items()
        }
        ends = {name: tuple(map(int, item["data_offsets"])) for name, item in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _damaged(file, "a JSON header of dtype, shape and data_offsets", repr(error))
    for name, entry in tensors.items():
        start, end = ends[name]
        bits = _BITS.get(entry.dtype)
        if bits and end - start != prod(entry.shape) * bits // 8:
            wanted = prod(entry.shape) * bits // 8
            _damaged(file, f"{wanted} bytes for tensor {name!r}", f"{end - start}")
    expected = _LENGTH_BYTES + length + max((end for _, end in ends.values()), default=0)
    if size != expected:
        _damaged(file, f"{expected} bytes by its header", f"{size} bytes")
    return tensors


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UsageError(f"{str(file)!r}: expected JSON, got {error}. Copy the file again") from error
    if not isinstance(content, dict):
        raise UsageError(
            f"{str(file)!r}: expected a JSON object, got {type(content).__name__}. Copy the file "
            f"again"
        )
    return content


def _damaged(file: Path, expected: str, got: str) -> NoReturn:
    raise UsageError(
        f"{str(file)!r} is truncated or damaged: expected {expected}, got {got}. Finish the "
        f"download or copy it again"
    )
