"""Arms faults where an engine's ranks are, if these have processes of their own.

A wrapper cannot cross to another process. So the whole fault is armed there, on one rank, in a
world that holds that rank's seams and nothing of the other side.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from syncguard.errors import SyncguardError, Unsupported
from syncguard.seams import Seam, Seams

__all__ = ["RankSeam", "seams_of_ranks"]

_ARMED: Final[dict[int, list[contextlib.ExitStack]]] = {}
"""In the process of a rank: what ends each fault that is armed there, by rank."""


@dataclass(frozen=True, slots=True)
class RankSeam(Seam):
    """A callable in the process of one rank.

    Attributes:
        rank: The rank.
        site: What it is called there.
    """

    rank: int = 0
    site: str = ""

    @contextlib.contextmanager
    def wrap(
        self, make_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> Iterator[None]:
        """See `syncguard.seams.Seam.wrap`.

        Raises:
            Unsupported: Always: a replacement cannot get there.
        """
        del make_wrapper
        raise Unsupported(
            f"seam {self.attribute!r} at {self.site!r} is in the process of rank {self.rank}, "
            "where only a whole fault can be armed"
        )
        yield

    @contextlib.contextmanager
    def armed(self, fault: str, tally: Path) -> Iterator[None]:
        """Arm a fault there.

        Args:
            fault: Its name.
            tally: A file that grows by a byte with each firing: it outlives the process.

        Raises:
            Unsupported: The rank could not.
        """
        self.owner.on_ranks(_arm, self.rank, fault, self.site, str(tally))
        try:
            yield
        finally:
            with contextlib.suppress(SyncguardError):  # the fault may have ended the process
                self.owner.on_ranks(_disarm, self.rank)


def seams_of_ranks(engine: Any) -> Seams:
    """The seams in the processes of an engine's ranks; none where they are in this one.

    Sites are named as on a stub: with the rank in front where there are several.

    Raises:
        Unsupported: A rank does not answer.
    """
    if not getattr(engine, "ranks_apart", bool)():
        return {}
    seams: Seams = {}
    offered = engine.on_ranks(_offered)
    for rank, prefix, found in offered:
        for name, sites in found.items():
            for site in sites:
                alone = f"rank{rank}" if prefix else site
                told = alone if site == "engine" else f"{prefix}{site}"
                seam = RankSeam(engine, name, rank=rank, site=site)
                seams.setdefault(name, {})[told] = seam
    return seams


def _offered(observer: Any) -> tuple[int, str, dict[str, list[str]]]:
    """In the process of a rank: its number, what its paths begin with, seams and sites."""
    return observer.rank, observer.prefix, {n: list(s) for n, s in observer.seams().items()}


def _arm(observer: Any, rank: int, fault: str, site: str, tally: str) -> None:
    """In the process of a rank: arm a fault, if it is this one."""
    if observer.rank != rank:
        return
    from syncguard.faults import FAULTS, World  # which import this module

    class RankWorld(World):
        def fire(self, count: int = 1) -> None:
            super().fire(count)
            with open(tally, "ab") as file:
                file.write(b"." * count)

    stack = contextlib.ExitStack()
    world = RankWorld(_OutOfReach, lambda: observer)
    # Not `Fault.armed`: whether the site is one has been asked where both sides are.
    stack.enter_context(contextlib.contextmanager(FAULTS[fault].arm)(world, site))
    _ARMED.setdefault(rank, []).append(stack)


def _disarm(observer: Any, rank: int) -> None:
    """In the process of a rank: end what was armed there last, if it is this one."""
    if observer.rank == rank and _ARMED.get(rank):
        _ARMED[rank].pop().close()


class _OutOfReach:
    """The learner, as the process of a rank has it."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"process {os.getpid()} of a rank has no learner to ask for {name!r}")
