"""What the checks say of an armed fault, sync by sync."""

from collections.abc import Sequence

from syncguard.checks import CHECKS
from syncguard.runner import OBSERVABILITY
from syncguard.verdict import Status, Verdict

__all__ = ["Trail"]


class Trail:
    """Gathers the verdicts from the first sync on in which the fault fired.

    A fault that breaks C7 is detected also by a check that gives no answer and says so: that the
    runner turns silence into a verdict is what C7 asks.

    Args:
        breaks: Conditions that the armed fault violates.
        claimed_by: Checks that say they see it.
        checks: Names of the checks that run.

    Attributes:
        within: Syncs within which every layer is probed.
        equivalent: Why the fault changes nothing that this engine serves, if it does so.
        fired: How often the fault has fired.
        seen_at: See `syncguard.campaign.cell.Cell`, as for the following.
        evidence: Check to the text of its first failure.
        reached: Checks that answered.
        not_run: Check to why it gave no answer.
    """

    def __init__(
        self, breaks: Sequence[str], claimed_by: Sequence[str], checks: Sequence[str]
    ) -> None:
        self._silences_checks = "C7" in breaks
        self._claims = {*claimed_by} & {*checks, OBSERVABILITY}
        self._syncs = 0
        self.within = 1
        self.equivalent = ""
        self.fired = 0
        self.seen_at: dict[str, int] = {}
        self.evidence: dict[str, str] = {}
        self.reached: dict[str, None] = {}
        self.not_run: dict[str, str] = {}

    def note(self, fired: int, verdicts: Sequence[Verdict]) -> None:
        """Take down one sync.

        Args:
            fired: How often the fault has fired until now.
            verdicts: The verdicts after the sync.
        """
        self.fired = fired
        if not fired:
            return
        self._syncs += 1
        for verdict in verdicts:
            if not verdict.counts:
                continue
            self.reached[verdict.check] = None
            if verdict.status is Status.FAIL:
                self._see(verdict.check, verdict.message)
            elif verdict.status is Status.NOT_RUN:
                told = f"{verdict.reason}: {verdict.message}"
                self.not_run.setdefault(verdict.check, told)
                if self._silences_checks and not _is_reference(verdict.check):
                    self._see(OBSERVABILITY, f"{verdict.check}: {verdict.status}: {told}")

    @property
    def detected_by(self) -> tuple[str, ...]:
        """Checks, but no references, that failed at the earliest sync."""
        seen = {name: at for name, at in self.seen_at.items() if not _is_reference(name)}
        return tuple(name for name, at in seen.items() if at == min(seen.values()))

    @property
    def settled(self) -> bool:
        """Whether further syncs cannot change what the cell proves."""
        return bool(self.detected_by) and self._claims <= self.reached.keys()

    def _see(self, check: str, message: str) -> None:
        if check not in self.seen_at:
            self.seen_at[check] = self._syncs
            self.evidence[check] = message


def _is_reference(name: str) -> bool:
    return name in CHECKS and CHECKS[name].reference
