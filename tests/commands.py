"""What running a command in this process gives."""

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Ran", "Run"]


class Ran(NamedTuple):
    """A command that came to its end."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]
