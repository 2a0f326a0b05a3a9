"""Which checks run around a sync, and how deep the probes go."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from syncguard.checks import CHECKS, Check
from syncguard.conditions import CORE_CONDITIONS

__all__ = ["PRODUCTION", "PROFILES", "SMOKE", "Profile"]

_ELEMENTS: Final = 32
"""Of a block: turns until `syncguard.probes.unit_rows` have been the whole identity."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A choice of checks.

    Attributes:
        name: Its name.
        purpose: What it is for, in a few words.
        checks: Names of the checks that run; none means all.
        probe_layers: Layers whose kernels are probed at a sync, in turn; none probes all of them
            exactly.
        stand_ins: Check to the one of this profile that stands for it.
    """

    name: str
    purpose: str
    checks: tuple[str, ...] | None = None
    probe_layers: int | None = None
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    def period(self, layers: int) -> int:
        """Syncs within which every one of so many layers is probed."""
        return 1 if self.probe_layers is None else max(1, -(-layers // self.probe_layers))

    def within(self, layers: int) -> int:
        """Syncs within which every element of so many layers is probed on its own."""
        return 1 if self.probe_layers is None else _ELEMENTS * self.period(layers)

    def claims(self, checks: Iterable[str]) -> tuple[str, ...]:
        """Checks that claim a fault, each by the one that stands for it here."""
        return tuple(dict.fromkeys(self.stand_ins.get(name, name) for name in checks))

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
        "destinations",
        "ranks",
        "exclusive-sync",
        "placement",
        "served-version",
    ),
    probe_layers=8,
    stand_ins={"exact-probe": "block-probe"},
)
"""C1 to C5 at full coverage of the weights, in a fraction of the sync's own time."""

PROFILES: Final = MappingProxyType({profile.name: profile for profile in (SMOKE, PRODUCTION)})
"""All profiles by name."""
