"""Every check finds something that no other does, or its docstring says why it stays."""

import pytest

from syncguard.checks import CHECKS
from syncguard.faults import FAULTS
from syncguard.runner import OBSERVABILITY
from tests.faults.helpers import run, sites_of

ALONE = {
    "activations-by-another-rule": "random-probe",
    "block-maximum-clamped": "quantizer-canary",
    "buffers-initialized-late": "checkpoint-loaded",
    "check-covers-nothing": OBSERVABILITY,
    "checkpoint-loaded-after-a-request": "fresh-at-use",
    "completed-only-at-the-end": "session",
    "drawn-by-other-probabilities": "sampled-tokens",
    "encoder-cache-kept": "cache-coherence",
    "frozen-draft-lost": "preserved-state",
    "head-served-dequantized": "layer-set",
    "kernel-chosen-again": "placement",
    "merging-drifts": "learner-unchanged",
    "packed-element-bit": "exact-probe",
    "padding-from-recycled-memory": "equal-sync",
    "rank-silent": "ranks",
    "same-values-other-bytes": "weight-bytes",
    "scales-padded-in-place": "destinations",
    "sent-twice": "ledger",
    "served-during-sync": "exclusive-sync",
    "swizzle-padding-unset": "re-derivation",
    "temperature-applied": "paired-logprobs",
    "version-not-committed": "served-version",
    "workspace-made-again": "storage-identity",
}
"""Fault to the one check that sees it."""

STAYS = {
    "alias-graph": "needs no forward to be observed",
    "block-probe": "the form of it for production",
    "cold-warm": "no reference but the engine itself",
    "exported-weights": "stays for that",
    "finite": "needs no learner",
    "gross-divergence": "stays for engines that are not calibrated",
    "poison-coverage": "stays because it needs no such bytes",
    "weight-values": "tells whether the policy is touched",
}
"""Check to the words of its docstring that say why it is kept."""


def test_every_check_is_spoken_for() -> None:
    checks = {check.name for check in CHECKS.values() if not check.reference} | {OBSERVABILITY}
    assert set(ALONE.values()) | STAYS.keys() == checks
    assert not set(ALONE.values()) & STAYS.keys()


@pytest.mark.parametrize("name", STAYS)
def test_docstring_says_why_it_stays(name: str) -> None:
    assert STAYS[name] in CHECKS[name].explanation


@pytest.mark.parametrize("name", ALONE)
def test_seen_by_one_check_alone(name: str) -> None:
    sites = sites_of(name)
    ends = dict.fromkeys([sites[0], sites[-1]])
    # At the other end a second check may see it too: the canary asks the first quantizer only.
    assert {ALONE[name]} in [run(name, site)[0].failed for site in ends]
    assert FAULTS[name].claimed_by == (ALONE[name],)
