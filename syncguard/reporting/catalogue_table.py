"""Lists of what there is, and what a name means, as text."""

from collections.abc import Iterable
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from syncguard.catalogue import Entry, Explanation

__all__ = ["entry_table", "explained"]

_HEADINGS: Final = {"name": "", "core": "kind"}
_TOLD: Final = {
    "core": {True: "core", False: "extension"},
    "installed": {True: "yes", False: "no"},
    "reference": {True: "reference"},
}
_UNLISTED: Final = ("claimed_by", "met", "needs", "seam", "silent")
"""What a terminal has no room for; the JSON has it."""


def entry_table(entries: Iterable[Entry]) -> RenderableType:
    """A row for each entry."""
    rows = list(entries)
    columns = [key for key in (rows[0] if rows else ()) if key not in _UNLISTED]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for key in columns:
        table.add_column(_HEADINGS.get(key, key), overflow="fold", no_wrap=key == "name")
    for row in rows:
        table.add_row(*(_cell(key, row[key]) for key in columns))
    return table


def explained(explanation: Explanation) -> RenderableType:
    """Title, then labelled texts."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for label, text in explanation.parts:
        rows.add_row(label, Text(text))
    return Group(Text(explanation.title, "bold"), "", rows)


def _cell(key: str, value: object) -> str:
    if isinstance(value, bool):
        return _TOLD[key].get(value, "")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
