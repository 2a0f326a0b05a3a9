"""The conditions that every weight synchronization must preserve, as data."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["CONDITIONS", "CORE_CONDITIONS", "Condition"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One property of a synchronized sampler.

    Attributes:
        id: Short identifier, ``C1`` and so on.
        name: What it is called in tables.
        statement: What must hold after every sync.
        core: Whether it is one of the seven published conditions; the others are
            extensions and are reported apart.
    """

    id: str
    name: str
    statement: str
    core: bool = True


_ALL: Final = (
    Condition(
        "C1",
        "layer set",
        "The sampler quantizes exactly the layers that the learner runs in low precision, "
        "and no others.",
    ),
    Condition(
        "C2",
        "weight grid",
        "The sampler's quantized weights are the learner's forward weight grid, byte for byte.",
    ),
    Condition(
        "C3",
        "derived state",
        "Every kernel-specific copy of weights or scales derived at load is rebuilt from the "
        "synchronized weights.",
    ),
    Condition(
        "C4",
        "storage identity",
        "The tensors that captured graphs read are the ones that receive the update.",
    ),
    Condition(
        "C5",
        "completeness",
        "When the last bucket is loaded, every parameter has been written exactly once and every "
        "staged buffer is folded back.",
    ),
    Condition(
        "C6",
        "output sanity",
        "The sampler's token probabilities are finite and its divergence from the learner is "
        "bounded.",
    ),
    Condition(
        "C7",
        "observability",
        "Every check reports a verdict, or why it could not run.",
    ),
    Condition(
        "C8",
        "freshness at use",
        "The policy that serves a request is the version that was published.",
        core=False,
    ),
    Condition(
        "C9",
        "cache coherence",
        "No cached prefix state was computed by old weights.",
        core=False,
    ),
    Condition(
        "C10",
        "preserved state",
        "What a sync does not carry is unchanged by it.",
        core=False,
    ),
    Condition(
        "C11",
        "atomicity",
        "Nothing is served between begin and end of a sync, and a failed sync does not serve.",
        core=False,
    ),
    Condition(
        "C12",
        "source truth",
        "What was exported is what the learner trains.",
        core=False,
    ),
    Condition(
        "C13",
        "placement",
        "Placement and configuration of the sampler are unchanged by a sync.",
        core=False,
    ),
)

CONDITIONS: Final = MappingProxyType({condition.id: condition for condition in _ALL})
"""All conditions by identifier, in order."""

CORE_CONDITIONS: Final = tuple(condition for condition in _ALL if condition.core)
"""The seven published conditions, in order."""
