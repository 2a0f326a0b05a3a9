"""The operations of a program, as data."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from syncguard.errors import UsageError
from syncguard.hints import did_you_mean

__all__ = ["OPS", "Op", "format_program", "parse_program"]

OPS: Final = MappingProxyType(
    {
        "open": "open a sync; a value other than 0 is the byte that the engine is poisoned with",
        "send": "send the next weights that wait, as one bucket; the value is their number",
        "resend": "send a weight of this sync again; the value says which",
        "drop": "lose the next weights that wait; the value is their number",
        "reorder": "shuffle what waits; the value is the seed",
        "last": "send all that waits, as the last bucket",
        "finish": "close the sync, and judge it",
        "fail": "give the sync up, and judge it",
        "train": "change the learner's weights: by a small optimizer step if the value is 0, "
        "else by noise of this seed",
        "finalize": "run all post-processing once more",
        "capture": "capture the decoding forward anew",
        "rebalance": "place experts in other slots; the value is the seed",
        "sleep": "release memory; level 1 keeps weights aside, 2 leaves them to the next sync",
        "wake": "take memory again",
        "serve": "ask for a few tokens",
    }
)
"""Names of operations and what they do."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    Attributes:
        name: A key of `OPS`.
        value: See `OPS`; 0 where it means nothing.

    Raises:
        UsageError: There is no such operation.
    """

    name: str
    value: int = 0

    def __post_init__(self) -> None:
        if self.name not in OPS:
            hint = did_you_mean(self.name, OPS)
            raise UsageError(f"there is no operation {self.name!r}{hint} Known: {', '.join(OPS)}")

    def __str__(self) -> str:
        """The name, and the value if it is not 0."""
        return f"{self.name} {self.value}" if self.value else self.name


def format_program(program: Iterable[Op]) -> str:
    """A program as text: ``open; send 3; drop 1; last; finish``."""
    return "; ".join(map(str, program))


def parse_program(text: str) -> tuple[Op, ...]:
    """The inverse of `format_program`.

    Raises:
        UsageError: A part is no operation.
    """
    program = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        name, _, value = part.partition(" ")
        try:
            program.append(Op(name, int(value or "0")))
        except ValueError:
            raise UsageError(
                f"operation {part!r}: the value must be a whole number, got {value!r}"
            ) from None
    return tuple(program)
