"""Faults that break C9: what old weights computed is kept for requests to new ones."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from syncguard.faults.registry import fault_table
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


def _kept(world: World, site: str) -> Iterator[None]:
    cache = world.seam("cache", site).owner

    def wrapper(original: Callable[[], None]) -> Callable[[], None]:
        del original
        return lambda: world.fire(bool(cache.versions()))

    with world.wrap("cache", site, wrapper):
        yield


fault_table(_KEPT, lambda: _kept, breaks="C9", claimed_by="cache-coherence", seam="cache")
