"""C11: nothing is served between begin and end of a sync, and a failed sync does not serve."""

from collections.abc import Sequence

from syncguard.checks.judgement import Judgement, counted, failed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import ServedRequest, SyncRecord
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["exclusive_sync"]


@check("exclusive-sync", "C11")
def exclusive_sync(
    sync_record: SyncRecord,
    served_before: Sequence[ServedRequest] | None,
    served_requests: Sequence[ServedRequest] | None,
    admits: bool | None,
) -> Judgement:
    """No request was answered while the sync was open, nor would be after it failed.

    Answers from half-updated weights are of no policy at all, and a prefix cache spreads them.
    """
    if served_before is None or served_requests is None or admits is None:
        return not_run(Reason.NOT_APPLICABLE, "the engine keeps no record of when it served")
    during = [request for request in served_requests[len(served_before) :] if request.sync]
    coverage = Coverage(1, 1)
    if during or (sync_record.error and admits):
        got = (
            f"{counted(len(during), 'request was', 'requests were')} answered while it was open"
            if during
            else "the engine lets requests in after it failed"
        )
        return failed(
            explain(
                "the engine served weights that were not whole",
                where=f"sync {sync_record.number}",
                expected="no request between begin and end, and none after a failure",
                got=got,
                cause="requests and updates are dispatched on paths that do not exclude each "
                "other, or the failure was not passed on",
                todo="pause admission from begin to the end of a whole sync",
            ),
            coverage,
            subject=f"sync {sync_record.number}",
            measured=len(during),
            bound=0,
        )
    return passed("no request was answered while the sync was open", coverage, measured=0, bound=0)
