"""The registry of faults: plain generator functions that arm one fault at one site.

A fault is data (what it breaks, which checks claim it, where it was met) and a function that
wraps seams, yields while the fault is armed, and restores on exit. It tells the world each time
it really changed something (`World.fire`): a fault that never fires proves nothing.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from syncguard.conditions import CONDITIONS
from syncguard.faults.ranks import RankSeam
from syncguard.faults.world import World
from syncguard.seams import SEAM_NAMES, Seam, Seams

__all__ = ["FAULTS", "NOT_REENACTED", "Arm", "Fault", "fault", "fault_table"]

Arm = Callable[[World, str], Iterator[None]]
"""Arms a fault at a site, yields while it is armed, and restores."""

_FAULTS: Final[dict[str, "Fault"]] = {}

FAULTS: Final = MappingProxyType(_FAULTS)
"""All registered faults by name, in the order of registration."""


NOT_REENACTED: Final = MappingProxyType(
    {
        "W31": "an upgrade changed the default kernel under an unchanged configuration: within one "
        "run nothing changes; the report names the kernel of each layer, to be compared with that "
        "of the last good run",
    }
)
"""Faults met in the wild that no fault here stands for, with the reason."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A registered fault.

    Attributes:
        name: Its name.
        breaks: Identifiers of the conditions that it violates, the first one first.
        claimed_by: Names of the checks that say they see it at the first sync.
        seam: The seam whose sites it can be armed at.
        met: Where it was met: numbers of published failures (``F3``) and of faults met in the
            wild (``W14``).
        links: Public threads about it.
        silent: Whether a run with it ends without an error and with normal metrics.
        topology: Fields of the stub's topology that it needs.
        at: Gives its sites where the seam has one and the fault has many, as the weights of an
            export; none if its sites are the seam's.
        sites: Which of these sites it applies to.
        beside: Seams that it uses beside its own, which must be in the same process.
        late: Whether it is also to be armed after a healthy sync, before a small optimizer step:
            stale values are then almost right.
        equivalent: Why it changes nothing that is served at some sites, if it does so.
        arm: The function.
        explanation: Its docstring.
    """

    name: str
    breaks: tuple[str, ...]
    claimed_by: tuple[str, ...]
    seam: str
    arm: Arm
    explanation: str
    met: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    silent: bool = True
    topology: Mapping[str, Any] = field(default_factory=dict)
    at: Callable[[World], Iterable[str]] | None = None
    sites: Callable[[str], bool] = lambda site: True
    beside: tuple[str, ...] = ()
    late: bool = False
    equivalent: str = ""

    @property
    def summary(self) -> str:
        """First line of the explanation."""
        return self.explanation.partition("\n")[0]

    def sites_in(self, world: World) -> list[str]:
        """The sites of a world at which the fault can be armed; empty if it lacks the seam."""
        return self._sites_of(world, world.seams())

    def _sites_of(self, world: World, seams: Seams) -> list[str]:
        offered = seams.get(self.seam, {})
        candidates = self.at(world) if self.at is not None and offered else offered
        return [
            site
            for site in candidates
            if self.sites(site) and self._reached(seams, offered.get(site))
        ]

    def armed(self, world: World, site: str) -> AbstractContextManager[None]:
        """A context in which the fault is armed at one site.

        Raises:
            KeyError: The world has no such site.
        """
        seams = world.seams()
        if site not in self._sites_of(world, seams):
            raise KeyError(f"fault {self.name!r} has no site {site!r} here")
        seam = seams[self.seam].get(site)
        if isinstance(seam, RankSeam):
            return world.arming(seam, self.name)
        return contextlib.contextmanager(self.arm)(world, site)

    def _reached(self, seams: Seams, own: Seam | None) -> bool:
        """Whether one process has what a site needs beside its own seam."""
        apart = isinstance(own, RankSeam)
        return all(
            any(isinstance(seam, RankSeam) is apart for seam in seams.get(name, {}).values())
            for name in self.beside
        )


def fault(
    name: str,
    *,
    breaks: str,
    claimed_by: str,
    seam: str,
    met: str = "",
    links: tuple[str, ...] = (),
    silent: bool = True,
    topology: Mapping[str, Any] | None = None,
    at: Callable[[World], Iterable[str]] | None = None,
    sites: Callable[[str], bool] = lambda site: True,
    beside: str = "",
    late: bool = False,
    equivalent: str = "",
) -> Callable[[Arm], Arm]:
    """Register a generator function as a fault; see `Fault` for the arguments.

    ``breaks``, ``claimed_by``, ``met`` and ``beside`` are lists separated by blanks.

    Raises:
        ValueError: The name is taken, a condition or seam is unknown, or the docstring missing.
    """
    conditions = tuple(breaks.split())
    unknown = [condition for condition in conditions if condition not in CONDITIONS]
    unknown += [used for used in (seam, *beside.split()) if used not in SEAM_NAMES]
    if unknown:
        raise ValueError(f"fault {name!r}: unknown condition or seam {unknown}")

    def register(arm: Arm) -> Arm:
        explanation = inspect.getdoc(arm) or ""
        if name in _FAULTS or not explanation:
            raise ValueError(f"fault {name!r}: the name is taken or the docstring is missing")
        _FAULTS[name] = Fault(
            name=name,
            breaks=conditions,
            claimed_by=tuple(claimed_by.split()),
            seam=seam,
            arm=arm,
            explanation=explanation,
            met=tuple(met.split()),
            links=links,
            silent=silent,
            topology=MappingProxyType(dict(topology or {})),
            at=at,
            sites=sites,
            beside=tuple(beside.split()),
            late=late,
            equivalent=equivalent,
        )
        return arm

    return register


def fault_table(
    rows: Mapping[str, Mapping[str, Any]], make_arm: Callable[..., Arm], **shared: Any
) -> None:
    """Register several faults of one mechanism, one a row.

    Args:
        rows: Name to a row: ``what`` and ``shows``, the first line and the rest of the
            explanation, arguments of `fault`, and arguments of ``make_arm``.
        make_arm: Gives the generator function of a row, from what remains of it.
        shared: Arguments of `fault` that the rows have in common; a row's own come first.
    """
    known = inspect.signature(fault).parameters
    for name, row in rows.items():
        given = {**shared, **row}
        explanation = f"{given.pop('what')}\n\n{given.pop('shows')}"
        options = {key: value for key, value in given.items() if key in known}
        arm = make_arm(**{key: value for key, value in given.items() if key not in known})
        fault(name, **options)(_explained(arm, explanation))


def _explained(arm: Arm, explanation: str) -> Arm:
    def explained(world: World, site: str) -> Iterator[None]:
        yield from arm(world, site)

    explained.__doc__ = explanation
    return explained
