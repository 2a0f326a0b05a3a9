"""The tables of cells, one for each engine."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from syncguard.errors import UsageError
from syncguard.survey import sglang, vllm
from syncguard.survey.cell import SurveyCell

__all__ = ["TABLES", "cells_of"]

TABLES: Final[Mapping[str, Callable[[], Sequence[SurveyCell]]]] = MappingProxyType(
    {"sglang": sglang.cells, "vllm": vllm.cells}
)
"""Cells by engine; another engine is another module and a line here."""


def cells_of(engines: Sequence[str] = ()) -> list[SurveyCell]:
    """The cells of some engines, or of all.

    Raises:
        UsageError: An engine has no table.
    """
    if unknown := [name for name in engines if name not in TABLES]:
        raise UsageError(f"--engine {unknown[0]!r} is not one of {', '.join(TABLES)}")
    return [cell for name in engines or TABLES for cell in TABLES[name]()]
