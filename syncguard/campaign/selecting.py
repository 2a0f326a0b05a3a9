"""Names by pattern, as the command line gives them."""

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from syncguard.errors import UsageError
from syncguard.hints import did_you_mean

__all__ = ["matching", "select"]


def matching(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """The names that a pattern equals or matches, in their own order.

    Names of sites hold brackets, which mean something in a pattern: equality comes first.
    """
    wanted = list(patterns)
    return [
        name
        for name in names
        if any(name == pattern or fnmatchcase(name, pattern) for pattern in wanted)
    ]


def select(option: str, patterns: Sequence[str], names: Collection[str], hint: str) -> list[str]:
    """The names that an option asks for.

    Args:
        option: The option, for the error.
        patterns: Names, or patterns with ``*``, ``?`` and ``[]``.
        names: All names.
        hint: Where the user finds them.

    Raises:
        UsageError: A pattern matches no name.
    """
    for pattern in patterns:
        if not matching([pattern], names):
            meant = did_you_mean(pattern, names, most=3, cutoff=0.5)
            raise UsageError(
                f"{option} {pattern!r} matches none of {len(names)} names{meant}\n"
                f"  what to do: {hint}"
            )
    return matching(patterns, names)
