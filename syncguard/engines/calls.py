"""The seams that every live engine has: the calls of its adapter, wherever its model is."""

from typing import Any, Final

from syncguard.seams import Seam, Seams

__all__ = ["SITE", "call_seams"]

SITE: Final = "engine"
"""The site of what there is once."""

_CALLS: Final = ("begin", "finish", "generate", "send")
_OBSERVATIONS: Final = (
    "layers",
    "poison",
    "probe_blocks",
    "probe_exact",
    "probe_random",
    "rederive",
    "state",
    "storage",
    "weight_prints",
)


def call_seams(engine: Any) -> Seams:
    """What a trainer calls, and what a check asks for."""
    seams: Seams = {name: {SITE: Seam(engine, name)} for name in _CALLS}
    for seam, names in (("observe", _OBSERVATIONS), ("version", ["version"])):
        seams[seam] = {name: Seam(engine, name) for name in names if hasattr(engine, name)}
    return seams
