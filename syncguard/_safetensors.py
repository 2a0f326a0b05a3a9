"""Headers of safetensors files: names, dtypes and shapes, without reading any weight."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, NoReturn

from syncguard.errors import UsageError

__all__ = ["TensorEntry", "read_json", "read_tensors"]

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_LENGTH_BYTES: Final = 8
_LFS_POINTER: Final = b"version "
_LONGEST_HEADER: Final = 100_000_000  # the limit of the safetensors format
_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16,
    "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip


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


def read_tensors(path: Path) -> Mapping[str, TensorEntry]:
    """Read what the safetensors files of a checkpoint folder hold, from their headers.

    Raises:
        UsageError: There are none, or one is missing, truncated or damaged.
    """
    if (path / _INDEX).is_file():
        return _read_indexed(path)
    if (path / _SINGLE).is_file():
        return _read_header(path / _SINGLE)
    pickles = sorted(
        file.name for suffix in ("bin", "pt", "pth") for file in path.glob(f"*.{suffix}")
    )
    found = (
        f"only pickles ({', '.join(pickles)}), which can run code when loaded"
        if pickles
        else "none"
    )
    raise UsageError(
        f"model {str(path)!r}: expected weights in {_SINGLE} or {_INDEX}, found {found}. Save them "
        f"as safetensors with `save_pretrained`"
    )


def _read_indexed(path: Path) -> Mapping[str, TensorEntry]:
    placed = read_json(path / _INDEX).get("weight_map")
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
    lost = [
        name for name, file in placed.items() if name not in tensors or tensors[name].file != file
    ]
    if lost:
        raise UsageError(
            f"model {str(path)!r}: {len(lost)} of {len(placed)} tensors are not in the files that "
            f"{_INDEX} names, first {lost[0]!r} in {placed[lost[0]]!r}. The index and the files "
            f"are of different checkpoints: copy both again"
        )
    return tensors


def _read_header(file: Path) -> Mapping[str, TensorEntry]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(_LENGTH_BYTES)
        length = int.from_bytes(start, "little")
        if start == _LFS_POINTER:
            raise UsageError(
                f"{str(file)!r} is a Git LFS pointer, not the weights. Fetch them with "
                f"`git lfs pull`"
            )
        if size < _LENGTH_BYTES + length or not 2 <= length <= _LONGEST_HEADER:
            room = max(0, size - _LENGTH_BYTES)
            _damaged(file, f"a header of at most {room} bytes", f"{length} bytes")
        text = stream.read(length)
    tensors: dict[str, TensorEntry] = {}
    expected = _LENGTH_BYTES + length
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        for name, item in header.items():
            entry = TensorEntry(file.name, str(item["dtype"]), tuple(map(int, item["shape"])))
            first, end = map(int, item["data_offsets"])
            bits = _BITS.get(entry.dtype)
            wanted = end - first if bits is None else prod(entry.shape) * bits // 8
            if end - first != wanted:
                _damaged(file, f"{wanted} bytes for tensor {name!r}", f"{end - first} bytes")
            tensors[name] = entry
            expected = max(expected, _LENGTH_BYTES + length + end)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _damaged(file, "a JSON header of dtype, shape and data_offsets", repr(error))
    if size != expected:
        _damaged(file, f"{expected} bytes by its header", f"{size} bytes")
    return tensors


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        UsageError: The file holds something else.
    """
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise UsageError(
            f"{str(file)!r}: expected JSON, got {error}. Copy the file again"
        ) from error
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
