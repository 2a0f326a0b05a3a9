"""The two sides that a fault is armed in, with their seams and a count of its firings."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import syncguard.runner
from syncguard.checks import CHECKS
from syncguard.faults.ranks import RankSeam, seams_of_ranks
from syncguard.seams import Seam, Seams, merged_seams

__all__ = ["World"]


class World:
    """What a fault sees.

    Args:
        make_learner: Builds the learner.
        make_engine: Starts the engine.

    Attributes:
        learner: The learner.
        engine: The engine.
    """

    def __init__(self, make_learner: Callable[[], Any], make_engine: Callable[[], Any]) -> None:
        self.engine = make_engine()
        self.learner = make_learner()
        self._fired = 0
        self._tallies: list[Path] = []

    @property
    def fired(self) -> int:
        """How often the armed fault has changed something, here and in the processes of ranks."""
        return self._fired + sum(_length(tally) for tally in self._tallies)

    @fired.setter
    def fired(self, count: int) -> None:
        self._fired = count

    def fire(self, count: int = 1) -> None:
        """Tell that the armed fault has changed something."""
        self._fired += count

    @contextmanager
    def arming(self, seam: RankSeam, fault: str) -> Iterator[None]:
        """Arm a fault in the process of a rank, and count its firings there.

        Args:
            seam: One of the engine's.
            fault: Name of the fault.

        Raises:
            Unsupported: The rank could not.
        """
        with TemporaryDirectory(prefix="syncguard-fault-") as folder:
            tally = Path(folder, "fired")
            self._tallies.append(tally)
            try:
                with seam.armed(fault, tally):
                    yield
            finally:
                self._tallies.remove(tally)
                self._fired += _length(tally)

    def why_equivalent(self, fault: str) -> str:
        """Why a fault changes nothing that this engine serves; empty if the engine knows none."""
        known: Mapping[str, str] = getattr(self.engine, "equivalent_faults", dict)()
        return known.get(fault, "")

    def seams(self) -> Seams:
        """The seams of both sides, none where a side offers none, and of the checks."""
        sides: list[Seams] = [
            getattr(side, "seams", dict)() for side in (self.engine, self.learner)
        ]
        of_checks: Seams = {"check": {name: _asked(name) for name in CHECKS}}
        return merged_seams(of_checks, *sides, seams_of_ranks(self.engine))

    def seam(self, name: str, site: str) -> Seam:
        """One seam.

        Raises:
            KeyError: There is none of this name at this site.
        """
        return self.seams()[name][site]

    @contextmanager
    def wrap(
        self, name: str, site: str, make_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> Iterator[None]:
        """Replace the callable of one seam for a while; see `syncguard.seams.Seam.wrap`.

        What is only called while a side is built takes effect by building that side again, here
        and once more at the end.
        """
        seam = self.seam(name, site)
        if not seam.build:
            with seam.wrap(make_wrapper):
                yield
            return
        side = self._owner(name, site)
        try:
            with seam.wrap(make_wrapper):
                side.restart()
                yield
        finally:
            side.restart()

    def _owner(self, name: str, site: str) -> Any:
        seams: Seams = getattr(self.engine, "seams", dict)()
        return self.engine if site in seams.get(name, {}) else self.learner


def _length(tally: Path) -> int:
    return tally.stat().st_size if tally.exists() else 0


def _asked(name: str) -> Seam:
    return Seam(syncguard.runner, "ask", lambda check, _view: bool(check.name == name))
