"""The registry of checks: plain functions that judge observations.

A check's parameters name the observations that it needs (`syncguard.observing.OBSERVERS`).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from syncguard.checks.judgement import Judgement
from syncguard.conditions import CONDITIONS

__all__ = ["CHECKS", "Check", "check"]

Judge = Callable[..., Judgement]

_CHECKS: Final[dict[str, "Check"]] = {}

CHECKS: Final = MappingProxyType(_CHECKS)
"""All registered checks by name, in the order of registration."""


@dataclass(frozen=True, slots=True)
class Check:
    """A registered check.

    Attributes:
        name: Its name.
        condition: The condition that it judges.
        judge: The function.
        needs: Names of the observations that it takes.
        summary: First line of its docstring.
        reference: Whether it is a published instrument, kept for comparison: campaigns run it and
            show its column, other runs leave it out.
    """

    name: str
    condition: str
    judge: Judge
    needs: tuple[str, ...]
    summary: str
    reference: bool = False

    @property
    def explanation(self) -> str:
        """The whole docstring."""
        return inspect.getdoc(self.judge) or self.summary


def check(name: str, condition: str, *, reference: bool = False) -> Callable[[Judge], Judge]:
    """Register a function as a check.

    Args:
        name: Unique name.
        condition: Identifier of the condition that it judges.
        reference: Whether only campaigns run it, for comparison.

    Raises:
        ValueError: The name is taken, the condition unknown, or the function undocumented.
    """
    if condition not in CONDITIONS:
        raise ValueError(f"check {name!r}: unknown condition {condition!r}")

    def register(judge: Judge) -> Judge:
        summary = (inspect.getdoc(judge) or "").partition("\n")[0]
        if name in _CHECKS or not summary:
            raise ValueError(f"check {name!r}: the name is taken or the docstring is missing")
        needs: Any = tuple(inspect.signature(judge).parameters)
        _CHECKS[name] = Check(name, condition, judge, needs, summary, reference)
        return judge

    return register
