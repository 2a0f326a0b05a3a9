"""A stub's topology as it is typed: ``experts=4,ranks=2``."""

from dataclasses import fields
from typing import Any, Final

from syncguard.errors import UsageError
from syncguard.hints import did_you_mean
from syncguard.sides import STUB_MODELS
from syncguard.stubs import Topology

__all__ = ["parse_topology"]

_DEFAULTS: Final = {field.name: field.default for field in fields(Topology)}
_BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_topology(text: str, **also: Any) -> Topology:
    """Read a topology.

    Args:
        text: Fields of `syncguard.stubs.Topology` and their values, and names of
            `syncguard.sides.STUB_MODELS`, separated by commas; empty for the default.
        also: Fields that must have these values, whatever the text says.

    Raises:
        UsageError: A field is unknown, a value is none of its kind, or the fields do not fit
            together.
    """
    chosen: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if part in STUB_MODELS:
            chosen |= STUB_MODELS[part]
            continue
        if not equals or name not in _DEFAULTS:
            hint = did_you_mean(name, [*_DEFAULTS, *STUB_MODELS])
            raise UsageError(
                f"the stub's topology has no {part!r}{hint}\n"
                f"  expected: {', '.join(STUB_MODELS)}, or FIELD=VALUE, separated by commas\n"
                f"  fields: {', '.join(_DEFAULTS)}"
            )
        chosen[name] = _value(name, value)
    return Topology(**{**chosen, **also})


def _value(name: str, text: str) -> Any:
    default = _DEFAULTS[name]
    try:
        if isinstance(default, bool):
            return _BOOLEANS[text.lower()]
        return int(text) if isinstance(default, int) else text
    except (KeyError, ValueError):
        kind = "true or false" if isinstance(default, bool) else "a whole number"
        raise UsageError(f"the stub's topology: {name} must be {kind}, got {text!r}") from None
