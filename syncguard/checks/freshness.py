"""C8: the policy that serves a request is the version that was published."""

from syncguard.checks.judgement import Judgement, failed, passed
from syncguard.checks.registry import check
from syncguard.observations import SyncRecord
from syncguard.verdict import Coverage, explain

__all__ = ["served_version"]


@check("served-version", "C8")
def served_version(sync_record: SyncRecord) -> Judgement:
    """The engine reports the version that the sync carried."""
    expected, got = sync_record.version, sync_record.served_version
    if got == expected:
        return passed(f"the engine reports version {got}", Coverage(1, 1))
    return failed(
        explain(
            "the engine reports another version than the one that was sent",
            where=f"sync {sync_record.number}",
            expected=expected,
            got=got or "no version",
            cause="the sync was not committed, or something loaded other weights after it",
            todo="stamp every response with the version and drop those of another",
        ),
        Coverage(1, 1),
        subject=f"sync {sync_record.number}",
    )
