"""One way to hold, receive and serve weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final

__all__ = ["SurveyCell"]

_USUAL: Final = ("in", "eager")


@dataclass(frozen=True, slots=True)
class SurveyCell:
    """A configuration of both sides, and what is done with it.

    Attributes:
        engine: As for ``syncguard smoke``.
        model: The same.
        weights: How the engine holds them; its ``--quantization``.
        path: How they reach it.
        process: Where it runs: ``in`` this process, all of it in its ``own``, vLLM's
            core in one of its own, ``mp``, in two ranks of ``tp2``, or behind its ``server``.
        compiled: ``eager`` or ``compile``.
        variant: What is special about it, in a word; empty if nothing is.
        settings: Settings of the engine, see `syncguard.sides.make_engine`.
        scenario: One of `syncguard.survey.scenarios.SCENARIOS`.
        finding: One of `syncguard.survey.findings.FINDINGS`: what is known to fail here.
        note: What its result must be read with; empty if there is nothing.
        missing: Why it cannot be run; empty if it can.
        core: Whether it belongs to the short survey.
    """

    engine: str
    model: str
    weights: str
    path: str
    process: str = "in"
    compiled: str = "eager"
    variant: str = ""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    scenario: str = "smoke"
    finding: str = ""
    note: str = ""
    missing: str = ""
    core: bool = False

    @property
    def name(self) -> str:
        """Its values by axis, joined by slashes, and the variant behind a plus sign.

        What runs ``in`` process and ``eager`` does not say so.
        """
        model = self.model.removeprefix("tiny-")
        axes = (self.engine, model, self.weights, self.path, self.process, self.compiled)
        told = "/".join(value for value in axes if value not in _USUAL)
        return told + (f"+{self.variant}" if self.variant else "")

    def matches(self, word: str) -> bool:
        """Whether a word of ``--only`` means it: a part of its name, a pattern, or ``core``."""
        return word in self.name or fnmatchcase(self.name, word) or (self.core and word == "core")
