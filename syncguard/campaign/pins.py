"""What a campaign's user fixes of every place, whichever fault is armed there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from syncguard.models import expert_count

__all__ = ["Pins", "model_traits", "unmet"]

_SIZES: Final = frozenset({"head_dim", "heads", "hidden", "intermediate", "kv_heads", "layers"})
"""What no fault depends on, as far as there is some of it."""

_SHARED: Final = ("n_shared_experts", "shared_expert_intermediate_size")


@dataclass(frozen=True, slots=True)
class Pins:
    """Empty and 0 leave the choice to the fault.

    Attributes:
        model: As for `syncguard.sides.make_model`.
        quantization: As the engine calls it.
        path: How syncs reach the engine.
        ranks: Tensor-parallel ranks.
        process: One of `syncguard.sides.PROCESSES`.
    """

    model: str = ""
    quantization: str = ""
    path: str = ""
    ranks: int = 0
    process: str = ""

    def told(self) -> dict[str, str]:
        """What is fixed, by option of the command line."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {_OPTIONS.get(name, name): str(value) for name, value in given.items() if value}

    def words(self) -> Iterator[str]:
        """Options of the command line that fix the same."""
        for option, value in self.told().items():
            yield f"--{option}"
            yield value


_OPTIONS: Final = {"ranks": "tp"}


def model_traits(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is, in the words of a stub's topology.

    Args:
        config: Its configuration, as transformers writes it.
    """
    return {
        "bias": bool(config.get("attention_bias", config.get("model_type") == "qwen2")),
        "correction_bias": config.get("model_type") == "glm4_moe",
        "experts": expert_count(config),
        "shared_expert": any(config.get(name) for name in _SHARED),
        "tied": bool(config.get("tie_word_embeddings")),
    }


def unmet(needs: Mapping[str, Any], traits: Mapping[str, Any]) -> list[str]:
    """What is needed and not there, as arguments of a topology.

    How many experts there are does not matter, if there are some.

    Args:
        needs: Fields of a topology.
        traits: The same of what there is; what is left out can be anything.
    """
    return [
        f"{name}={value!r}"
        for name, value in needs.items()
        if name not in _SIZES and name in traits and not _alike(name, value, traits[name])
    ]


def _alike(name: str, wanted: Any, found: Any) -> bool:
    return bool(wanted) == bool(found) if name == "experts" else bool(wanted == found)
