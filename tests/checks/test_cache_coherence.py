"""C9: cached entries are of the served version."""

import pytest

from syncguard.checks.cache_coherence import cache_coherence
from syncguard.verdict import Reason
from tests.checks.factories import a_record, fails, parts_of, passes, silent


def test_entries_of_the_served_version_pass() -> None:
    assert passes(cache_coherence(a_record(), {"x": "2", "y": "2"}), 2)


@pytest.mark.parametrize(("version", "told"), [("1", "version 1"), ("", "version (none)")])
def test_an_entry_of_other_weights_is_named(version: str, told: str) -> None:
    judgement = cache_coherence(a_record(), {"x": "2", "y": version})
    assert fails(judgement, "y")
    assert judgement.evidence == (("y", f"computed by {told}"),)
    assert parts_of(judgement)["expected"] == "version 2"


def test_a_failed_sync_or_no_cache_is_not_applicable() -> None:
    failed = cache_coherence(a_record(error="x"), {"x": "1"})
    assert silent(failed, Reason.NOT_APPLICABLE)
    assert failed.message == "the sync failed"
    assert silent(cache_coherence(a_record(), None), Reason.NOT_APPLICABLE)
    assert silent(cache_coherence(a_record(), {}), Reason.NOT_APPLICABLE)
