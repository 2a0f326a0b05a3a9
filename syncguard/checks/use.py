"""C8 at use: once requests have been answered, the engine still serves what was synchronized."""

from collections.abc import Mapping

from syncguard.checks.differences import differing_rows
from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import SyncRecord, Unreadable, WeightPrint
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["fresh_at_use"]

Prints = Mapping[str, WeightPrint | Unreadable]


@check("fresh-at-use", "C8")
def fresh_at_use(
    sync_record: SyncRecord,
    weight_prints: Prints,
    prints_at_use: Prints | None,
    version_at_use: str | None,
) -> Judgement:
    """Look at weights and version again after the engine has answered requests.

    A wake-up inside a request can load the checkpoint again, and a copy that is still in flight
    when a sync ends lands later. Both change weights that every other check has seen before.
    """
    if sync_record.error or prints_at_use is None:
        return not_run(Reason.NOT_APPLICABLE, "the sync failed, so no request was made")
    readable = {key: held for key, held in weight_prints.items() if isinstance(held, WeightPrint)}
    if not readable:
        return not_run(Reason.MISSING_INPUT, "the engine reported no weight that can be read")
    wrong = {
        key: "was rewritten after the sync"
        for key, held in readable.items()
        if not _same(held, prints_at_use.get(key))
    }
    if version_at_use is not None and version_at_use != sync_record.served_version:
        wrong["version"] = f"{sync_record.served_version!r} became {version_at_use!r}"
    names = {held.weight for held in weight_prints.values()}
    seen = {held.weight for held in readable.values()}
    nbytes = sum(held.nbytes for held in readable.values())
    coverage = Coverage(len(seen), len(names), nbytes, nbytes)
    if not wrong:
        return passed(
            f"{counted(len(seen), 'weight is', 'weights are')} the same after requests as before",
            coverage,
            measured=0,
            bound=0,
        )
    key, text = next(iter(wrong.items()))
    return failed(
        explain(
            f"{counted(len(wrong), 'weight', 'weights')} changed after the sync, while the engine "
            "served",
            where=listed(list(wrong)),
            expected="what the sync left",
            got=f"{key}: {text}",
            cause="the engine loads its checkpoint when it wakes, or the sync returned before its "
            "last copies were done",
            todo="reload before the sync, not in a request; wait for every copy before finishing",
        ),
        coverage,
        subject=key,
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )


def _same(before: WeightPrint, after: WeightPrint | Unreadable | None) -> bool:
    if not isinstance(after, WeightPrint):
        return False
    rows = differing_rows(before, after)
    return rows is not None and not rows.size
