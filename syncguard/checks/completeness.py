"""C5: every parameter has been written exactly once and every staged buffer is folded back."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import (
    EngineLayer,
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
    engine_layers: Sequence[EngineLayer],
    learner_prints: Mapping[str, WeightPrint],
    sync_record: SyncRecord,
) -> Judgement:
    """Hold the ledger of arrivals and writes against the learner's manifest.

    The manifest says under which names each weight travels. Each name must arrive exactly once and
    be written, on every rank whose layers hold the weight; and every place (parameter, shard,
    expert, rank) must be written exactly once. One name may fill several places, as copies of an
    expert. An element count sees none of this: a shard that came twice hides one that never came.
    """
    if not manifest or not sync_record.buckets:
        return not_run(Reason.MISSING_INPUT, "no weight was expected, or no bucket arrived")
    arrived = Counter(name for bucket in sync_record.buckets for name in bucket)
    ranks: dict[str, set[int]] = defaultdict(set)
    for layer in engine_layers:
        for weight in layer.parts:
            ranks[weight].add(layer.rank)
    written: dict[str, set[int]] = defaultdict(set)
    for row in sync_record.loaded:
        written[row.weight].add(row.rank)
    wrong = {
        name: text
        for name, weight in manifest.items()
        if (text := _fate(arrived[name], written[name], ranks[weight]))
    }
    for name in sorted(arrived.keys() - manifest.keys()):
        wrong[name] = "arrived, but the learner has no such weight"
    for name, text in _crowded(sync_record.loaded).items():
        wrong.setdefault(name, text)
    weights = set(manifest.values())
    nbytes = sum(held.nbytes for weight, held in learner_prints.items() if weight in weights)
    coverage = Coverage(len(weights), len(weights), nbytes, nbytes)
    if not wrong:
        return passed(
            f"{counted(len(manifest), 'weight', 'weights')} arrived and "
            f"{'was' if len(manifest) == 1 else 'were'} written exactly once, in "
            f"{counted(len(sync_record.buckets), 'bucket', 'buckets')}",
            coverage,
            measured=0,
            bound=0,
        )
    name, text = next(iter(wrong.items()))
    return failed(
        explain(
            f"{counted(len(wrong), 'weight was', 'weights were')} not written exactly once",
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
    arrived = len({name for bucket in sync_record.buckets for name in bucket})
    coverage = Coverage(arrived, arrived)
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
                f"{counted(len(sync_record.unfolded), 'layer', 'layers')} had staged data when "
                "the sync ended",
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
    if not arrived:
        return not_run(Reason.MISSING_INPUT, "the session was closed without any weight")
    return passed("one session, closed, nothing left staged", coverage)


@check("poison-coverage", "C5")
def poison_coverage(
    learner_prints: Mapping[str, WeightPrint],
    poisoned: Poisoned | None,
    weight_prints: Mapping[str, WeightPrint | Unreadable],
) -> Judgement:
    """Fill all weights with a byte pattern before the sync; no row may keep it.

    Syncs alternate between two patterns, since one can be a legal value. It finds nothing that
    the comparison with the learner's bytes does not, and stays because it needs no such bytes:
    what kept the pattern was not written, whatever should have been.
    """
    if poisoned is None:
        return not_run(Reason.NOT_APPLICABLE, "the engine was not poisoned before this sync")
    kept: dict[str, str] = {}
    checked: dict[str, int] = {}
    for key, before in poisoned.prints.items():
        after, nbytes = weight_prints.get(key), poisoned.nbytes.get(before.weight, 0)
        if not (nbytes and _filled(before) and isinstance(after, WeightPrint)):
            continue
        if before.rows.keys() != after.rows.keys() or before.shape != after.shape:
            continue
        wanted = learner_prints.get(before.weight)
        checked[before.weight] = min(nbytes, before.nbytes)
        if text := _kept(before, after, wanted):
            kept[key] = text
    known = [name for name in learner_prints if name in checked]
    total = sum(held.nbytes for held in learner_prints.values())
    covered = sum(min(checked[name], learner_prints[name].nbytes) for name in known)
    coverage = Coverage(len(known), len(learner_prints), covered, total)
    pattern = f"0x{poisoned.pattern:02X}"
    if not (known or kept):
        return not_run(
            Reason.UNSUPPORTED, "no weight of this engine took the pattern from outside", coverage
        )
    if not kept:
        return passed(
            f"{counted(len(known), 'weight was', 'weights were')} filled with {pattern} before "
            "the sync; none of it is left",
            coverage,
            measured=0,
            bound=0,
        )
    weight, text = next(iter(kept.items()))
    return failed(
        explain(
            f"{counted(len(kept), 'weight was', 'weights were')} not written by the sync",
            where=listed(list(kept)),
            expected=f"no row still filled with {pattern}",
            got=f"{weight}: the pattern is left in {text}",
            cause="the weight, a shard of it, or its scales never came, or were written elsewhere",
            todo="see the ledger for what arrived and where it went",
        ),
        coverage,
        subject=weight,
        measured=len(kept),
        bound=0,
        evidence=kept.items(),
    )


def _filled(held: WeightPrint) -> bool:
    """Whether a weight can be filled with one byte: then all of its rows are alike."""
    return all(rows.size and (rows == rows[0]).all() for rows in held.rows.values())


def _kept(before: WeightPrint, after: WeightPrint, wanted: WeightPrint | None) -> str:
    """How much of a fill is left where the learner has something else; empty if nothing is."""
    told = []
    for name, rows in before.rows.items():
        same = rows == after.rows[name]
        legal = wanted.rows.get(name) if wanted is not None else None
        if legal is not None and legal.shape == rows.shape:
            same &= rows != legal
        if count := int(np.count_nonzero(same)):
            told.append(f"{count} of {counted(same.size, 'row', 'rows')} of its {name}")
    return " and ".join(told)


def _fate(arrivals: int, written: set[int], ranks: set[int]) -> str:
    """What went wrong with one name on the wire; empty if nothing did."""
    if arrivals == 0:
        return "never arrived"
    if arrivals > 1:
        return f"arrived {arrivals} times"
    if not written:
        return "arrived, but no loader took it"
    silent = [str(rank) for rank in sorted(ranks - written)]
    return f"arrived, but no loader took it on rank {listed(silent)}" if silent else ""


def _crowded(loaded: Sequence[Loaded]) -> dict[str, str]:
    """Names that share a place with another write, and the place."""
    places: dict[str, list[str]] = defaultdict(list)
    for row in loaded:
        places[_place(row)].append(row.weight)
    crowded: dict[str, str] = {}
    for place, names in places.items():
        others = f", by {listed(sorted(set(names)))}" if len(set(names)) > 1 else ""
        for name in names if len(names) > 1 else ():
            crowded.setdefault(name, f"{place} was written {len(names)} times{others}")
    return crowded


def _place(row: Loaded) -> str:
    shard = f" shard {row.shard}" if row.shard else ""
    expert = f" expert {row.expert}" if row.expert >= 0 else ""
    return f"{row.parameter}{shard}{expert} on rank {row.rank}"
