"""Scripts that reproduce what is known to fail."""

from collections.abc import Sequence

from syncguard.errors import UsageError
from syncguard.hints import did_you_mean
from syncguard.survey.cell import SurveyCell
from syncguard.survey.findings import FINDINGS

__all__ = ["script_of"]


def script_of(name: str, cells: Sequence[SurveyCell]) -> str:
    """The script for a cell, by its name, or for a finding, by its own.

    Raises:
        UsageError: There is no such cell, or nothing is known to fail in it.
    """
    if name in FINDINGS:
        return FINDINGS[name].script
    found = next((cell for cell in cells if cell.name == name), None)
    if found is None:
        known = [cell.name for cell in cells if cell.finding]
        hint = did_you_mean(name, [*known, *FINDINGS])
        raise UsageError(
            f"--repro {name!r} is neither a cell nor a finding{hint}\n"
            f"  expected: a finding: {', '.join(FINDINGS)}\n"
            f"  or a cell where one is known to show: {', '.join(known)}"
        )
    if not found.finding:
        raise UsageError(
            f"--repro {name!r}: nothing is known to fail in this cell, so there is nothing to "
            f"reproduce\n  what to do: syncguard survey --only '{name}' tells whether it passes"
        )
    return FINDINGS[found.finding].script
