"""Names on the wire and names in SGLang, which calls block scales ``weight_scale_inv``.

Its load from disk renames them itself, its update from tensors does not and raises a KeyError.
"""

__all__ = ["engine_name", "wire_name"]

_WIRE = ".weight_scale"
_ENGINE = ".weight_scale_inv"


def engine_name(name: str) -> str:
    """What SGLang calls a tensor of the wire."""
    return name.removesuffix(_WIRE) + _ENGINE if name.endswith(_WIRE) else name


def wire_name(name: str) -> str:
    """What the wire calls a tensor of SGLang."""
    return name.removesuffix(_ENGINE) + _WIRE if name.endswith(_ENGINE) else name
