"""C8: the policy that serves a request is the version that was published."""

from syncguard.checks.judgement import Judgement, failed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import SyncRecord
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["served_version"]


@check("served-version", "C8")
def served_version(sync_record: SyncRecord) -> Judgement:
    """The engine reports the version that the sync carried, and only once it is whole."""
    expected, got = sync_record.version, sync_record.served_version
    carried = len({name for bucket in sync_record.buckets for name in bucket})
    coverage = Coverage(carried, carried)
    if sync_record.error:
        if got != expected:
            return not_run(Reason.NOT_APPLICABLE, "the sync failed, and its version is not served")
        return failed(
            explain(
                "the engine reports the version of a sync that failed",
                where=f"sync {sync_record.number}",
                expected="the version before, or none",
                got=got,
                cause="the version is stamped before the weights are complete",
                todo="commit the version last, after every weight is in place",
            ),
            coverage,
            subject=f"sync {sync_record.number}",
        )
    if got != expected:
        return failed(
            explain(
                "the engine reports another version than the one that was sent",
                where=f"sync {sync_record.number}",
                expected=expected,
                got=got or "no version",
                cause="the sync was not committed, or something loaded other weights after it",
                todo="stamp every response with the version and drop those of another",
            ),
            coverage,
            subject=f"sync {sync_record.number}",
        )
    if not carried:
        return not_run(Reason.MISSING_INPUT, "the sync carried no weight")
    return passed(f"the engine reports version {got}", coverage)
