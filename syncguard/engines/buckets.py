"""A bucket as a file, which reaches every process of a machine: bytes are mapped, not copied."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file

__all__ = ["load_bucket", "save_bucket"]

Named = tuple[str, torch.Tensor]


__all__ = ["read_bucket", "write_bucket"]


def load_bucket(file: Path) -> Iterator[Named]:
    """Names and tensors of one bucket, in the order in which they were sent."""
    with safe_open(file, framework="pt") as held:
        for number, name in enumerate(json.loads(held.metadata()["names"])):
            yield name, held.get_tensor(str(number))
