"""A fault as a user names it: ``NAME`` or ``NAME@SITE``."""

from dataclasses import dataclass

from syncguard.campaign.selecting import select
from syncguard.errors import SyncguardError, UsageError
from syncguard.faults import FAULTS, Fault, World

__all__ = ["Chosen", "NotFired", "parse_fault"]


class NotFired(SyncguardError):
    """An armed fault changed nothing, so a run with it proves nothing."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A fault, and where it is to be armed.

    Attributes:
        fault: The fault.
        wanted: The site that the user names; empty leaves the choice.
    """

    fault: Fault
    wanted: str

    def site_in(self, world: World) -> str:
        """The site in a world: the one that was named, or the first.

        Raises:
            UsageError: The world has no such site, or none at all.
        """
        sites = self.fault.sites_in(world)
        name = self.fault.name
        if not sites:
            raise UsageError(
                f"fault {name!r} cannot be armed here: this engine has no site of its seam "
                f"{self.fault.seam!r}\n  what to do: try --engine stub"
            )
        if not self.wanted:
            return sites[0]
        hint = f"name one of {', '.join(sites)}, or leave @SITE out for the first"
        return select(f"site of fault {name!r}:", [self.wanted], sites, hint)[0]


def parse_fault(text: str) -> Chosen:
    """Read ``NAME`` or ``NAME@SITE``.

    Raises:
        UsageError: There is no such fault.
    """
    name, _, site = text.partition("@")
    hint = "`syncguard list faults` names them all"
    return Chosen(FAULTS[select("--fault", [name], FAULTS.keys(), hint)[0]], site)
