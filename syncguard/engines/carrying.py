"""Values between processes, as bytes, which pass wherever a pipe or vLLM's own calls lead.

torch's own pickling, because plain pickles of 8-bit floats cannot be read back.
"""

import io
from typing import Any

import torch

__all__ = ["from_bytes", "to_bytes"]


def to_bytes(value: Any) -> bytes:
    """Any observation, or the arguments of one."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def from_bytes(data: bytes) -> Any:
    """What `to_bytes` was given; only for what one's own processes have written."""
    return torch.load(io.BytesIO(data), weights_only=False)
