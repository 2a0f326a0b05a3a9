"""Buckets as safetensors files, which reach every process of a machine."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

__all__ = ["load_bucket", "save_bucket"]

Named = tuple[str, torch.Tensor]


def save_bucket(file: Path, bucket: Sequence[Named]) -> None:
    """Write one bucket; a name may come twice, as on any wire."""
    tensors = {str(number): tensor.contiguous() for number, (_, tensor) in enumerate(bucket)}
    save_file(tensors, file, metadata={"names": json.dumps([name for name, _ in bucket])})


def load_bucket(file: Path) -> Iterator[Named]:
    """Names and tensors of one bucket, in the order in which they were sent."""
    with safe_open(file, framework="pt") as held:
        for number, name in enumerate(json.loads(held.metadata()["names"])):
            yield name, held.get_tensor(str(number))
