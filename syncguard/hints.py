"""What a user may have meant by a name that there is not."""

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(
    word: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6, quoted: bool = True
) -> str:
    """The known names that are closest, as the end of a sentence; empty if none is close.

    Args:
        word: What was given.
        known: What there is.
        most: How many to tell.
        cutoff: How close they must be, see `difflib.get_close_matches`.
        quoted: Whether they come in quotes.
    """
    close = difflib.get_close_matches(word, list(known), n=most, cutoff=cutoff)
    told = [repr(name) if quoted else name for name in close]
    return f"; did you mean {' or '.join(told)}?" if told else ""
