"""C9: no cached prefix state was computed by old weights."""

from collections.abc import Mapping

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import SyncRecord
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["cache_coherence"]


@check("cache-coherence", "C9")
def cache_coherence(
    sync_record: SyncRecord, cached_versions: Mapping[str, str] | None
) -> Judgement:
    """Ask each cache which version of the weights computed its entries.

    Prefixes and encoded features are keyed by what was asked, not by the weights that answered.
    """
    if sync_record.error or not cached_versions:
        why = "the engine caches nothing, or does not tell by which weights"
        return not_run(Reason.NOT_APPLICABLE, "the sync failed" if sync_record.error else why)
    wrong = {
        entry: f"computed by version {version or '(none)'}"
        for entry, version in cached_versions.items()
        if version != sync_record.served_version
    }
    coverage = Coverage(len(cached_versions), len(cached_versions))
    if not wrong:
        return passed(
            f"{counted(len(cached_versions), 'cached entry is', 'cached entries are')} of the "
            "version that is served",
            coverage,
            measured=0,
            bound=0,
        )
    entry, text = next(iter(wrong.items()))
    return failed(
        explain(
            f"{counted(len(wrong), 'cached entry was', 'cached entries were')} computed by other "
            "weights",
            where=listed(list(wrong)),
            expected=f"version {sync_record.served_version}",
            got=f"{entry}: {text}",
            cause="a cache was not reset by the sync",
            todo="reset prefix and encoder caches when a sync ends, or key them by version",
        ),
        coverage,
        subject=entry,
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )
