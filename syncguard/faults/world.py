"""The two sides that a fault is armed in, with their seams and a count of its firings."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from syncguard.seams import Seam, Seams

__all__ = ["World"]


class World:
    """What a fault sees.

    Args:
        make_learner: Builds the learner, or builds it again.
        make_engine: Starts the engine, or starts it again.

    Attributes:
        learner: The learner.
        engine: The engine.
        fired: How often the armed fault has changed something.
    """

    def __init__(self, make_learner: Callable[[], Any], make_engine: Callable[[], Any]) -> None:
        self._make_learner = make_learner
        self._make_engine = make_engine
        self.engine = make_engine()
        self.learner = make_learner()
        self.fired = 0

    def fire(self, count: int = 1) -> None:
        """Tell that the armed fault has changed something."""
        self.fired += count

    def seams(self) -> Seams:
        """The seams of both sides; none where a side offers none."""
        merged: Seams = {}
        for side in (self.engine, self.learner):
            for name, sites in getattr(side, "seams", dict)().items():
                merged.setdefault(name, {}).update(sites)
        return merged

    def seam(self, name: str, site: str) -> Seam:
        """One seam.

        Raises:
            KeyError: There is none of this name at this site.
        """
        return self.seams()[name][site]

    def wrap(
        self, name: str, site: str, make_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> AbstractContextManager[None]:
        """Replace the callable of one seam for a while; see `syncguard.seams.Seam.wrap`."""
        return self.seam(name, site).wrap(make_wrapper)
