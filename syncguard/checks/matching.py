"""Which of the engine's answers speak of which of the learner's weights."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from syncguard.observations import LearnerLayer, Unreadable, WeightPrint

__all__ = ["MATRICES", "NO_RANKS", "Answers", "Ranks", "answers", "on_ranks"]

MATRICES: Final = frozenset({"linear", "head", "embedding", "expert", "router"})
"""Kinds of weights that a forward multiplies with or looks up, and so has a serving path for."""

Answers: TypeAlias = Mapping[str, WeightPrint | Unreadable]
"""What an engine answers for its copies of weights, by the engine's key."""

Ranks: TypeAlias = Mapping[str, Sequence[int]]
"""Ranks whose part of a weight is wrong, by the engine's key, where several ranks share it."""

NO_RANKS: Final[Ranks] = MappingProxyType({})
"""No weight is shared, or none of the shared ones is wrong."""


def answers(learner_layers: Sequence[LearnerLayer], given: Answers) -> dict[str, Answers]:
    """An engine's answers by the learner's weight.

    Where ranks or replicas hold the same weight, an engine reports one copy under the weight's
    name and the others under keys of their own, such as ``<name>@rank1``. A tied weight that the
    engine holds under the other name only has the answers of that one.

    Args:
        learner_layers: The learner's weights.
        given: The engine's key to its answer.

    Returns:
        For each of the learner's weights key and answer of each copy; empty if there is none.
    """
    by_weight: dict[str, dict[str, WeightPrint | Unreadable]] = defaultdict(dict)
    for key, answer in given.items():
        by_weight[answer.weight][key] = answer
    names = {layer.weight: layer.weight for layer in learner_layers}
    for layer in learner_layers:
        if layer.tied_to and layer.weight not in by_weight:
            names[layer.weight] = layer.tied_to
    return {weight: by_weight.get(name, {}) for weight, name in names.items()}


def on_ranks(ranks: Ranks, key: str) -> str:
    """Where a shared weight is wrong, to be put behind what is wrong with it; else nothing."""
    found = ranks.get(key, ())
    if not found:
        return ""
    return f", on {'rank' if len(found) == 1 else 'ranks'} {', '.join(map(str, found))}"
