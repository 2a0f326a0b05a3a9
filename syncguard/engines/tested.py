"""Versions of engines that the adapters were tested with; others run with a note in the report."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["TESTED", "untested"]

TESTED: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {"sglang": ("0.5.20", "0.5.23"), "vllm": ("0.29.0", "0.32.0")}
)
"""Engine to the oldest and the newest version, both tested; docs/versions.md has the results."""


def untested(engine: str, version: str) -> str:
    """A note if an engine's version is outside the tested range, or cannot be told; else empty.

    Args:
        engine: Its name; one that is not in `TESTED` brings its own adapter, and no note.
        version: As the engine tells it; what follows the release, such as ``+cpu``, is ignored.
    """
    if engine not in TESTED:
        return ""
    oldest, newest = TESTED[engine]
    if _release(oldest) <= _release(version) <= _release(newest):
        return ""
    return (
        f"{engine} {version or '(no version)'} is outside the tested range, {oldest} to {newest}: "
        "verdicts may speak of the adapter rather than of the engine"
    )


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
