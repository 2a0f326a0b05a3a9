"""What the library says of itself is true: conditions, checks, where each fault was met."""

import re

import pytest

from syncguard.checks import CHECKS
from syncguard.faults import FAULTS, NOT_REENACTED
from syncguard.runner import OBSERVABILITY

PUBLISHED = {f"F{number}" for number in range(1, 8)}
WILD = {
    f"W{number:02}"
    for number in (
        *(1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 15, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32),
        *(34, 35, 37, 38, 40, 41, 43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65),
        *(67, 68, 70, 71, 73, 74, 76, 77, 79, 80, 82, 83, 85, 86, 88, 89, 91, 92, 94, 95),
    )
}  # fmt: skip


def test_every_fault_that_was_met_is_reenacted_or_explained() -> None:
    met = {number for fault in FAULTS.values() for number in fault.met}
    assert met >= PUBLISHED
    assert met | NOT_REENACTED.keys() == PUBLISHED | WILD
    assert not met & NOT_REENACTED.keys()
    assert all(len(reason) > 40 for reason in NOT_REENACTED.values())


@pytest.mark.parametrize("name", FAULTS)
def test_claims_are_of_checks_that_run(name: str) -> None:
    known = {check.name for check in CHECKS.values() if not check.reference} | {OBSERVABILITY}
    assert set(FAULTS[name].claimed_by) <= known


@pytest.mark.parametrize("name", FAULTS)
def test_what_nothing_claims_is_explained(name: str) -> None:
    fault = FAULTS[name]
    if not fault.claimed_by:
        assert fault.equivalent or "No check can see it" in fault.explanation


@pytest.mark.parametrize("name", FAULTS)
def test_explanation_has_a_line_and_a_text(name: str) -> None:
    fault = FAULTS[name]
    first, blank, *rest = fault.explanation.split("\n")
    assert re.fullmatch(r"[A-Z`].{10,98}\.", first), first
    assert blank == ""
    assert rest
    assert all(link.startswith("https://github.com/") for link in fault.links)
    assert re.fullmatch(r"[a-z][a-z0-9-]+", name)


def test_every_condition_is_broken_by_some_fault() -> None:
    broken = {condition for fault in FAULTS.values() for condition in fault.breaks}
    assert broken == {f"C{number}" for number in range(1, 14)}
