"""The tables of cells, one for each engine."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from syncguard.survey import sglang, vllm
from syncguard.survey.cell import SurveyCell

__all__ = ["TABLES", "cells_of"]

TABLES: Final[Mapping[str, Callable[[], Sequence[SurveyCell]]]] = MappingProxyType(
    {"sglang": sglang.cells, "vllm": vllm.cells}
)
"""Cells by engine; another engine is another module and a line here."""


def cells_of(engines: Sequence[str] = ()) -> list[SurveyCell]:
    """The cells of some engines, or of all."""
    return [cell for name in engines or TABLES for cell in TABLES[name]()]
