"""The fixture that arms faults of the library."""

import contextlib
from collections.abc import Iterator

import pytest

from syncguard.faults import FAULTS, Fault, World
from syncguard.hints import did_you_mean
from syncguard.protocols import Engine, Learner

__all__ = ["ArmedFaults"]


class ArmedFaults:
    """What ``syncguard_faults`` gives to a test.

    Args:
        learner: The learner.
        engine: The engine.
    """

    def __init__(self, learner: Learner, engine: Engine) -> None:
        self.world = World(lambda: learner, lambda: engine)

    def sites(self, name: str) -> list[str]:
        """Where a fault can be armed in these sides; empty if an adapter lacks the seam.

        Raises:
            KeyError: There is no such fault.
        """
        return _known(name).sites_in(self.world)

    @contextlib.contextmanager
    def armed(self, name: str, site: str = "") -> Iterator[World]:
        """Arm a fault while the block runs; fail the test if it changed nothing.

        The test is skipped, with the reason, where an adapter lacks the seam.

        Args:
            name: Of the fault.
            site: One of `sites`; the first by default.

        Raises:
            KeyError: There is no such fault, or no such site.
        """
        fault = _known(name)
        sites = self.sites(name)
        if not sites:
            pytest.skip(lacking(fault.seam, self.world.engine.name))
        chosen = site or sites[0]
        fired = self.world.fired
        with fault.armed(self.world, chosen):
            yield self.world
        if self.world.fired == fired:
            pytest.fail(f"fault {name!r} at {chosen} changed nothing, so it proves nothing")


def _known(name: str) -> Fault:
    if name not in FAULTS:
        hint = did_you_mean(name, FAULTS, quoted=False)
        raise KeyError(f"there is no fault {name!r}{hint} `syncguard list faults` shows them")
    return FAULTS[name]


def lacking(seam: str, engine: str) -> str:
    """Why a fault cannot be armed."""
    return f"the adapter of {engine} offers no seam {seam!r}"
