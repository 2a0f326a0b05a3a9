"""What a survey is to run, as the command line asks for it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from syncguard.errors import UsageError
from syncguard.hints import did_you_mean
from syncguard.survey.cell import SurveyCell

__all__ = ["SurveyOptions"]

_MOST: int = 2
"""Live engines at a time: each takes most of a gigabyte."""


@dataclass(frozen=True, slots=True)
class SurveyOptions:
    """See ``syncguard survey --help``.

    Attributes:
        only: Words of which a cell must match one; empty for all cells.
        workers: Processes at a time; 0 for one a core, at most two.
        timeout_s: Limit for a cell.

    Raises:
        UsageError: A value is out of range.
    """

    only: tuple[str, ...] = ()
    workers: int = 0
    timeout_s: float = 180.0

    def __post_init__(self) -> None:
        if self.workers < 0 or self.timeout_s <= 0:
            raise UsageError("--workers must be at least 0, and --timeout more than 0")

    @property
    def processes(self) -> int:
        """Processes at a time."""
        return self.workers or min(_MOST, len(os.sched_getaffinity(0)))

    def chosen(self, cells: Sequence[SurveyCell]) -> list[SurveyCell]:
        """The cells that are asked for.

        Raises:
            UsageError: A word matches none.
        """
        for word in self.only:
            if not any(cell.matches(word) for cell in cells):
                raise UsageError(_no_such(word, cells))
        exact = {cell.name for cell in cells} & {*self.only}
        words = [word for word in self.only if word not in exact]
        return [
            cell
            for cell in cells
            if not self.only or cell.name in exact or any(map(cell.matches, words))
        ]


def _no_such(word: str, cells: Sequence[SurveyCell]) -> str:
    values = dict.fromkeys(
        value
        for cell in cells
        for value in (*cell.name.partition("+")[0].split("/"), cell.variant, "core")
        if value
    )
    return (
        f"--only {word!r} matches no cell{did_you_mean(word, values)}\n"
        f"  expected: a part of a cell's name, or a pattern; names have: {', '.join(values)}"
    )
