"""Faults that change nothing that SGLang serves, with the reason: their mechanism has no hold."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["EQUIVALENT"]

_AGAIN: Final = (
    "loaders write into the parameters at once, and each end derives anew from whole parameters: "
    "only the last end matters"
)

_AT_ONCE: Final = (
    "nothing waits: each tensor is copied into its parameter before the next one is taken"
)

_BESIDE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "buffer-reused-too-early": _AT_ONCE,
        "completed-only-at-the-end": "no layer is completed before the end of the session",
        "folded-without-last-mark": _AGAIN,
        "session-per-bucket": _AGAIN,
    }
)
"""With kernels that keep what they derive beside the parameters, as CUTLASS does."""

EQUIVALENT: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "none": _BESIDE,
        "mxfp8": _BESIDE,
        "mxfp8-trtllm": MappingProxyType({"buffer-reused-too-early": _AT_ONCE}),
    }
)
"""By how SGLang holds weights."""
