"""A bucket as a file, which reaches every process of a machine: bytes are mapped, not copied."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


__all__ = ["read_bucket", "write_bucket"]


def write_bucket(
    bucket: Sequence[tuple[str, "torch.Tensor"]], folder: Path
) -> tuple[str, list[str]]:
    """Write a bucket into a folder.

    Returns:
        The safetensors file, whose tensors are named by their position, from 0, and the weights'
        names by position: a name may come twice, as on any wire.
    """
    from safetensors.torch import save_file

    path = folder / "bucket.safetensors"
    save_file({str(i): tensor.contiguous() for i, (_, tensor) in enumerate(bucket)}, path)
    return str(path), [name for name, _ in bucket]


def read_bucket(path: str, names: Sequence[str]) -> list[tuple[str, "torch.Tensor"]]:
    """The bucket, in the order in which it was written."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    return [(name, tensors[str(i)]) for i, name in enumerate(names)]
