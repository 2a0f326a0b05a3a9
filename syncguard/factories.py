"""Functions that a user brings to start an engine: what goes wrong in one is told as its own."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from syncguard.errors import SyncguardError, UsageError
from syncguard.hints import did_you_mean

__all__ = ["blamed", "imported"]

Made = TypeVar("Made")


def imported(name: str, known: Iterable[str], todo: str) -> Callable[..., Any]:
    """The function that a name means.

    Args:
        name: ``MODULE:FACTORY``.
        known: Names of engines that need no such function.
        todo: What to do if it cannot be imported.

    Raises:
        UsageError: It is no such name, or nothing that can be called.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        names = list(known)
        raise UsageError(
            f"unknown engine {name!r}{did_you_mean(name, names, quoted=False)}\n"
            f"  expected: {', '.join(names)}, or MODULE:FACTORY of an adapter"
        )
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        if not callable(found):
            raise TypeError(f"{attribute} is a {type(found).__name__}, not a function")
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise UsageError(
            f"engine {name!r} cannot be imported\n"
            f"  got: {type(error).__name__}: {error}\n"
            f"  what to do: {todo}"
        ) from error
    return found


def blamed(name: str, start: Callable[[], Made], takes: str) -> Made:
    """Start an engine that a user brings.

    Args:
        name: Of its factory.
        start: Calls it.
        takes: What such factories are called with, in words.

    Raises:
        SyncguardError: It raised one itself.
        UsageError: It raised anything else.
    """
    try:
        return start()
    except SyncguardError:
        raise
    except (Exception, SystemExit) as error:  # the user's code, which may raise anything
        raise UsageError(
            f"engine {name!r} did not start\n"
            f"  got: {type(error).__name__}: {error}\n"
            f"  what to do: mend its factory, {takes}"
        ) from error
