"""C9: cached entries are of the served version."""

import pytest

from syncguard.checks.cache_coherence import cache_coherence
from syncguard.verdict import Reason
from tests.checks.factories import a_record, fails, parts_of, passes, silent


def test_entries_of_the_served_version_pass() -> None:
    judgement = cache_coherence(a_record(), {"x": "2", "y": "2"})
    assert passes(judgement, 2)
    assert judgement.message == "2 cached entries are of the version that is served"
    one = cache_coherence(a_record(), {"x": "2"})
    assert one.message == "1 cached entry is of the version that is served"


@pytest.mark.parametrize(("version", "told"), [("1", "version 1"), ("", "version (none)")])
def test_an_entry_of_other_weights_is_named(version: str, told: str) -> None:
    judgement = cache_coherence(a_record(), {"x": "2", "y": version})
    assert fails(judgement, "y")
    assert judgement.evidence == (("y", f"computed by {told}"),)
    assert judgement.coverage.layers_checked == judgement.coverage.layers_total == 2
    parts = parts_of(judgement)
    assert parts["what"] == "1 cached entry was computed by other weights"
    assert parts["where"] == "y"
    assert parts["expected"] == "version 2"
    assert parts["got"] == f"y: computed by {told}"


def test_all_such_entries_are_named() -> None:
    judgement = cache_coherence(a_record(), {"x": "1", "y": "0"})
    assert fails(judgement, "x", measured=2)
    assert parts_of(judgement)["what"] == "2 cached entries were computed by other weights"
    assert parts_of(judgement)["where"] == "x, y"


def test_a_failed_sync_is_not_applicable() -> None:
    for versions in ({"x": "1"}, None):
        judgement = cache_coherence(a_record(error="x"), versions)
        assert silent(judgement, Reason.NOT_APPLICABLE)
        assert judgement.message == "the sync failed"


@pytest.mark.parametrize("versions", [None, {}])
def test_no_cache_is_not_applicable(versions: dict[str, str] | None) -> None:
    judgement = cache_coherence(a_record(), versions)
    assert silent(judgement, Reason.NOT_APPLICABLE)
    assert judgement.message == "the engine caches nothing, or does not tell by which weights"
