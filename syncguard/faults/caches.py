"""Faults that break C9: what old weights computed is kept for requests to new ones."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from syncguard.faults.registry import fault
from syncguard.faults.world import World

__all__: list[str] = []

_KEPT: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "encoder-cache-kept": {
            "sites": lambda site: site.endswith("encoder.reset"),
            "met": "W58",
            "links": (
                "https://github.com/vllm-project/vllm/issues/44910",
                "https://github.com/vllm-project/vllm/pull/45093",
            ),
            "what": "Features that the old encoder computed are served after a sync.",
            "shows": "The cache is keyed by the image alone. To reset it is the user's choice, and "
            "the report must state it.",
        },
        "prefix-cache-kept": {
            "sites": lambda site: site.endswith("prefix.reset"),
            "what": "Keys and values of prefixes that the old weights computed are served.",
            "shows": "Prompts repeat from step to step, so most are hit. Reset the prefix cache "
            "when a sync ends.",
        },
    }
)


def _register(name: str) -> None:
    row = dict(_KEPT[name])
    what, shows = row.pop("what"), row.pop("shows")

    def arm(world: World, site: str) -> Iterator[None]:
        def wrapper(original: Callable[[], None]) -> Callable[[], None]:
            cache = getattr(original, "__self__")  # noqa: B009 - of a bound method

            def reset() -> None:
                world.fire(bool(cache.versions()))

            return reset

        with world.wrap("cache", site, wrapper):
            yield

    arm.__doc__ = f"{what}\n\n{shows}"
    fault(name, breaks="C9", claimed_by="cache-coherence", seam="cache", **row)(arm)


for _name in _KEPT:
    _register(_name)
