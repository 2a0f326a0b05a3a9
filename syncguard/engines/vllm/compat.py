"""What differs between vLLM versions, or has to be tolerated in them, in one place."""

from collections.abc import Mapping
from typing import Any

__all__ = ["tolerate_llvmlite"]


def tolerate_llvmlite() -> None:
    """Let an engine start in a process that has used numba.

    On a CPU vLLM 0.32 scans every module of the process for Triton kernels and takes any
    ``__dict__`` for a dictionary. llvmlite's library object answers each attribute name, this one
    too, with a function, and the scan dies with an AttributeError.
    """
    from vllm.triton_utils import dispatcher

    def plain_vars(value: Any) -> Mapping[str, Any]:
        try:
            held: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
        except AttributeError:
            held = {}
        return held

    dispatcher.vars = plain_vars
