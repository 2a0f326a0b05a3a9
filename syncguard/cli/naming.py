"""Options that name something, which an empty value would leave open without a word."""

from typing import Any

import typer

__all__ = ["naming"]


def naming(metavar: str, text: str) -> Any:
    """An option whose value must not be empty, and whose default is not shown.

    Args:
        metavar: What stands for the value in the help.
        text: The help.
    """
    return typer.Option(metavar=metavar, help=text, callback=_not_empty, show_default=False)


def _not_empty(value: str | None) -> str | None:
    """Refuse an empty value, which a script's unset variable gives and which asks for nothing."""
    if value == "":
        raise typer.BadParameter("it is empty: give a value, or leave the option out")
    return value
