"""A stub's topology as it is typed: ``experts=4,ranks=2``."""

import difflib
from dataclasses import fields
from typing import Any, Final

from syncguard.errors import UsageError
from syncguard.stubs import Topology

__all__ = ["parse_topology"]

_DEFAULTS: Final = {field.name: field.default for field in fields(Topology)}
_BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_topology(text: str, **also: Any) -> Topology:
    """Read a topology.

    Args:
        text: Fields of `syncguard.stubs.Topology` and their values, separated by commas; empty
            for the default.
        also: Fields that must have these values, whatever the text says.

    Raises:
        UsageError: A field is unknown, a value is none of its kind, or the fields do not fit
            together.
    """
    chosen: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in _DEFAULTS:
            close = difflib.get_close_matches(name, _DEFAULTS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(
                f"the stub's topology has no field {part!r}{hint}\n"
                f"  expected: FIELD=VALUE, separated by commas, with fields {', '.join(_DEFAULTS)}"
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
