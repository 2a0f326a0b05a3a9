"""C5: every parameter has been written exactly once and every staged buffer is folded back."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from syncguard.checks.judgement import Judgement, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import (
    LearnerLayer,
    Loaded,
    Poisoned,
    SyncRecord,
    Unreadable,
    WeightPrint,
)
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["ledger", "poison_coverage", "session"]


@check("ledger", "C5")
def ledger(
    manifest: Mapping[str, str],
    learner_prints: Mapping[str, WeightPrint],
    sync_record: SyncRecord,
) -> Judgement:
    """Hold the ledger of arrivals and writes against the learner's manifest.

    The manifest says under which names each weight travels. Each name must arrive exactly once, and cause exactly one write; every place (parameter,
    shard, expert, rank) must be written exactly once. An element count sees none of this: a shard
    that came twice hides one that never came.
    """
    expected = list(manifest)
    if not expected or not sync_record.buckets:
        return not_run(Reason.MISSING_INPUT, "no weight was expected, or no bucket arrived")
    arrived = Counter(name for bucket in sync_record.buckets for name in bucket)
    writes: dict[str, list[Loaded]] = defaultdict(list)
    for row in sync_record.loaded:
        writes[row.weight].append(row)
    wrong = {name: text for name in expected if (text := _fate(name, arrived, writes))}
    for name in sorted(arrived.keys() - set(expected)):
        wrong[name] = "arrived, but the learner has no such weight"
    for place, count in Counter(map(_place, sync_record.loaded)).items():
        if count > 1:
            wrong.setdefault(place, f"written {count} times")
    good = [name for name in expected if name not in wrong]
    weights = set(manifest.values())
    nbytes = sum(learner_prints[weight].nbytes for weight in weights)
    coverage = Coverage(len(weights), len(weights), nbytes, nbytes)
    if not wrong:
        return passed(
            f"{len(good)} weights arrived and were written exactly once, in "
            f"{len(sync_record.buckets)} buckets",
            coverage,
            measured=0,
            bound=0,
        )
    name, text = next(iter(wrong.items()))
    return failed(
        explain(
            f"{len(wrong)} weights were not written exactly once",
            where=listed(list(wrong)),
            expected="each weight arrives once and is written once",
            got=f"{name}: {text}",
            cause="a bucket or a shard was dropped, sent twice, renamed, or met a loader that "
            "ignores it",
            todo="compare the exporter's names with the learner's; end the session only after the "
            "last bucket",
        ),
        coverage,
        subject=name,
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )


@check("session", "C5")
def session(sync_record: SyncRecord) -> Judgement:
    """The sync ended without an error and left no staged data behind."""
    coverage = Coverage(1, 1)
    if sync_record.error:
        return failed(
            explain(
                "the sync ended with an error",
                where=f"sync {sync_record.number}, version {sync_record.version}",
                expected="begin, every bucket, finish",
                got=sync_record.error,
                cause="the engine refused a bucket or could not process it",
                todo="do not serve this engine before a complete sync has passed",
            ),
            coverage,
            subject=f"sync {sync_record.number}",
        )
    if sync_record.unfolded:
        return failed(
            explain(
                f"{len(sync_record.unfolded)} layers had staged data when the sync ended",
                where=listed(sync_record.unfolded),
                expected="every staged layer complete and folded back before the end",
                got="layers of which only a part had arrived",
                cause="a shard never came, or the session was closed before the last bucket",
                todo="mark the last bucket; finish once per sync, not once per bucket",
            ),
            coverage,
            subject=sync_record.unfolded[0],
            measured=len(sync_record.unfolded),
            bound=0,
            evidence=[(path, "staged, not folded") for path in sync_record.unfolded],
        )
    return passed("one session, closed, nothing left staged", coverage)


@check("poison-coverage", "C5")
def poison_coverage(
    learner_prints: Mapping[str, WeightPrint],
    poisoned: Poisoned | None,
    weight_prints: Mapping[str, WeightPrint | Unreadable],
) -> Judgement:
    """Fill all weights with a byte pattern before the sync; no row may keep it.

    Syncs alternate between two patterns, since one can be a legal value.
    """
    if poisoned is None:
        return not_run(Reason.NOT_APPLICABLE, "the engine was not poisoned before this sync")
    kept: dict[str, str] = {}
    checked = nbytes = 0
    for weight, before in poisoned.prints.items():
        after, wanted = weight_prints.get(weight), learner_prints.get(weight)
        if not isinstance(after, WeightPrint) or wanted is None:
            continue
        if before.rows.keys() != after.rows.keys() or before.shape != after.shape:
            continue
        checked += 1
        nbytes += poisoned.nbytes.get(weight, 0)
        for name, rows in before.rows.items():
            same = rows == after.rows[name]
            if name in wanted.rows and wanted.rows[name].shape == rows.shape:
                same &= rows != wanted.rows[name]
            if count := int(np.count_nonzero(same)):
                kept[weight] = f"{count} of {same.size} rows of its {name}"
    total = sum(print_.nbytes for print_ in learner_prints.values())
    coverage = Coverage(checked, len(learner_prints), min(nbytes, total), total)
    pattern = f"0x{poisoned.pattern:02X}"
    if not checked:
        return not_run(
            Reason.UNSUPPORTED, "no weight of this engine can be written from outside", coverage
        )
    if not kept:
        return passed(
            f"{checked} weights were filled with {pattern} before the sync; none of it is left",
            coverage,
            measured=0,
            bound=0,
        )
    weight, text = next(iter(kept.items()))
    return failed(
        explain(
            f"{len(kept)} weights were not written by the sync",
            where=listed(list(kept)),
            expected=f"no row still filled with {pattern}",
            got=f"{weight}: {text} still are",
            cause="the weight, a shard of it, or its scales never came, or were written elsewhere",
            todo="see the ledger for what arrived and where it went",
        ),
        coverage,
        subject=weight,
        measured=len(kept),
        bound=0,
        evidence=kept.items(),
    )


def _fate(name: str, arrived: Counter[str], writes: Mapping[str, Sequence[Loaded]]) -> str:
    times = arrived[name]
    if times == 0:
        return "never arrived"
    if times > 1:
        return f"arrived {times} times"
    per_rank = Counter(row.rank for row in writes[name])
    if not per_rank:
        return "arrived, but no loader took it"
    rank, count = max(per_rank.items(), key=lambda item: item[1])
    return f"caused {count} writes on rank {rank}" if count > 1 else ""


def _place(row: Loaded) -> str:
    shard = f" shard {row.shard}" if row.shard else ""
    expert = f" expert {row.expert}" if row.expert >= 0 else ""
    return f"{row.parameter}{shard}{expert} on rank {row.rank}"
