"""An engine of two ranks on which tests arm faults; it runs in a process of its own."""

from pathlib import Path

from syncguard.engines.sglang import SglangEngine

__all__ = ["start"]


class Ranked(SglangEngine):
    """What tests may ask besides."""

    def wait_for_ranks(self, seconds: float) -> None:
        """How long ranks have for an answer from now on."""
        self._ranks._timeout_s = seconds  # type: ignore[attr-defined]


def start(checkpoint: Path, quantization: str) -> Ranked:
    """Start it."""
    return Ranked(checkpoint, quantization, ranks=2)
