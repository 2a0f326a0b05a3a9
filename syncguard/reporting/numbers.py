"""Numbers as tables show them: short, and never better than they are."""

import math
from typing import Final

__all__ = ["bytes_of", "real", "seconds"]

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_LARGEST_PLAIN: Final = 1_000_000


def real(value: float | None) -> str:
    """A measured value or a bound: counts in full, anything else to three digits."""
    if value is None:
        return "-"
    if math.isfinite(value) and value == int(value) and abs(value) < _LARGEST_PLAIN:
        return str(int(value))
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration, such as ``0.01 s``, ``2.3 s`` or ``75 s``."""
    digits = 0 if value >= 10 else 1 if value >= 1 else 2
    return f"{value:.{digits}f} s"


def bytes_of(checked: int, total: int) -> str:
    """Bytes checked of the total in one unit, such as ``134/135 MB``.

    What was checked is rounded down: incomplete coverage never looks complete.
    """
    power = 0
    while total >= 1000 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    digits = 0 if power == 0 else 2 - int(math.log10(total / 1000**power))
    shown = f"{total / 1000**power:.{digits}f}"
    part = shown
    if checked < total:
        scale = 10**digits
        part = f"{math.floor(checked * scale / 1000**power) / scale:.{digits}f}"
    prefix = "<" if checked < total and part == shown else ""
    return f"{prefix}{part}/{shown} {_UNITS[power]}"
