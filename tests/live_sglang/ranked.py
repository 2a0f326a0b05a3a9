"""An engine of two ranks on which tests arm faults; it runs in a process of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from syncguard.engines.sglang import SglangEngine

__all__ = ["start"]


class Ranked(SglangEngine):
    """What tests may ask besides."""

    def on_ranks(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in every scheduler, with its model runner first."""
        self._ranks.ask("run", function, *arguments)

    def wait_for_ranks(self, seconds: float) -> None:
        """How long ranks have for an answer from now on."""
        self._ranks._timeout_s = seconds  # type: ignore[attr-defined]


def start(checkpoint: Path, quantization: str) -> Ranked:
    """Start it."""
    return Ranked(checkpoint, quantization, ranks=2)
