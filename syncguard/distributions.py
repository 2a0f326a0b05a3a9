"""Which distributions are installed here, read from their metadata."""

from collections.abc import Iterable
from importlib import metadata

__all__ = ["version_of", "versions_of"]


def version_of(distribution: str) -> str:
    """The version that is installed; empty if none is."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def versions_of(distributions: Iterable[str]) -> dict[str, str]:
    """Those of them that are installed, with their versions."""
    return {name: found for name in distributions if (found := version_of(name))}
