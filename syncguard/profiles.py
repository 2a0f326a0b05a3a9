"""Which checks run around a sync, and how deep the probes go."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from syncguard.checks import CHECKS, Check
from syncguard.conditions import CORE_CONDITIONS

__all__ = ["PRODUCTION", "PROFILES", "SMOKE", "Profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """A choice of checks.

    Attributes:
        name: Its name.
        purpose: What it is for, in a few words.
        checks: Names of the checks that run; none means all.
        probe_layers: Layers whose kernels are probed at a sync, in turn; none probes all of them
            exactly.
    """

    name: str
    purpose: str
    checks: tuple[str, ...] | None = None
    probe_layers: int | None = None

    def conditions(self) -> tuple[str, ...]:
        """Identifiers of the core conditions that its checks speak of, and C7, the runner's."""
        chosen = self.selected()
        spoken = {check.condition for check in chosen or CHECKS.values()} | {"C7"}
        return tuple(c.id for c in CORE_CONDITIONS if c.id in spoken)

    def selected(self) -> Sequence[Check] | None:
        """The checks that run; none means all."""
        return None if self.checks is None else [CHECKS[name] for name in self.checks]


SMOKE: Final = Profile("smoke", "before a run: every check, every kernel probed exactly")
"""Everything, at any cost."""

PRODUCTION: Final = Profile(
    "production",
    "around every sync of a run: every byte of every weight, kernels in turn",
    (
        "layer-set",
        "weight-bytes",
        "weight-values",
        "re-derivation",
        "block-probe",
        "storage-identity",
        "alias-graph",
        "ledger",
        "session",
        "served-version",
    ),
    probe_layers=8,
)
"""C1 to C5 at full coverage of the weights, in a fraction of the sync's own time."""

PROFILES: Final = MappingProxyType({profile.name: profile for profile in (SMOKE, PRODUCTION)})
"""All profiles by name."""
