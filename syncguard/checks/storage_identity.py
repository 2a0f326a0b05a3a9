"""C4: the tensors that captured graphs read are the ones that receive the update."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import GraphReads, StoredTensor
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["alias_graph", "storage_identity"]


@check("storage-identity", "C4")
def storage_identity(
    storage_before: Sequence[StoredTensor],
    storage: Sequence[StoredTensor],
    graph_reads: GraphReads,
) -> Judgement:
    """Compare the place of every tensor that a forward reads, before and after the sync.

    A graph captured before the sync reads the addresses of that time. What a forward reads is
    observed, not guessed: the inputs of its operators. Where no graph is captured, tensors that
    only a closure holds are left out: closures are code, and eager code looks them up anew. What
    an earlier sync took away is not covered.
    """
    before = {row.path: row for row in storage_before}
    after = {row.path: row for row in storage}
    watched = [
        row
        for path, row in before.items()
        if path in graph_reads.paths
        and row.nbytes
        and (graph_reads.captured or row.kind != "closure")
    ]
    lost = graph_reads.paths - before.keys()
    if not watched:
        return not_run(Reason.MISSING_INPUT, "no tensor was seen to be read by a forward")
    moved = {
        row.path: _change(row, after.get(row.path))
        for row in watched
        if after.get(row.path) is None or _place(after[row.path]) != _place(row)
    }
    nbytes = sum(row.nbytes for row in watched)
    coverage = Coverage(len(watched), len(watched) + len(lost), nbytes, nbytes)
    if not moved:
        return passed(
            f"{counted(len(watched), 'tensor', 'tensors')} that a forward reads stayed in place; "
            f"{counted(len(storage), 'tensor is', 'tensors are')} reachable",
            coverage,
            measured=0,
            bound=0,
        )
    path, change = next(iter(moved.items()))
    return failed(
        explain(
            f"the sync moved {counted(len(moved), 'tensor', 'tensors')} that a forward reads",
            where=listed(list(moved)),
            expected="storage, offset, shape, stride and dtype as before the sync",
            got=f"{path}: {change}",
            cause="post-processing made a new tensor and bound it in place of the old one, which "
            "captured graphs go on reading",
            todo="copy the new values into the old storage",
        ),
        coverage,
        subject=path,
        measured=len(moved),
        bound=0,
        evidence=moved.items(),
    )


@check("alias-graph", "C4")
def alias_graph(
    storage_before: Sequence[StoredTensor], storage: Sequence[StoredTensor]
) -> Judgement:
    """Compare which tensors share storage, before and after the sync.

    A tied weight that is no longer shared, or two tensors that newly share one buffer, serve
    something else than what was sent. Where a forward reads them, storage identity sees that they
    moved; this names the partner, and needs no forward to be observed.
    """
    if not storage_before or not storage:
        return not_run(Reason.MISSING_INPUT, "the engine reported no tensors")
    before, after = _aliases(storage_before), _aliases(storage)
    both = {row.path for row in storage_before} & {row.path for row in storage}
    if not both:
        return not_run(Reason.MISSING_INPUT, "no tensor is where one was before the sync")
    broken = {
        path: f"shared with {listed(sorted(before[path] - {path})) or 'nothing'} before, with "
        f"{listed(sorted(after[path] - {path})) or 'nothing'} now"
        for path in sorted(both)
        if before[path] & both != after[path] & both
    }
    coverage = Coverage(len(both), len({row.path for row in [*storage_before, *storage]}))
    if not broken:
        return passed("tensors share storage as before", coverage, measured=0, bound=0)
    path, change = next(iter(broken.items()))
    return failed(
        explain(
            f"{len(broken)} tensors share storage with others than before",
            where=listed(list(broken)),
            expected="the alias graph of before the sync",
            got=f"{path}: {change}",
            cause="one of several names of a tensor was bound to a copy, or one buffer was used "
            "for several tensors",
            todo="write through the shared storage; clone what is taken from a reused buffer",
        ),
        coverage,
        subject=path,
        measured=len(broken),
        bound=0,
        evidence=broken.items(),
    )


def _place(row: StoredTensor) -> tuple[object, ...]:
    return (row.storage, row.offset, row.shape, row.stride, row.dtype)


def _change(row: StoredTensor, now: StoredTensor | None) -> str:
    if now is None:
        return "is gone"
    fields = ("storage", "offset", "shape", "stride", "dtype")
    changed = [name for name in fields if getattr(row, name) != getattr(now, name)]
    return "; ".join(
        f"{name} {_shown(name, getattr(row, name))} became {_shown(name, getattr(now, name))}"
        for name in changed
    )


def _shown(name: str, value: Any) -> str:
    return f"{value:#x}" if name == "storage" else str(value)


def _aliases(rows: Sequence[StoredTensor]) -> dict[str, frozenset[str]]:
    groups: dict[int, set[str]] = defaultdict(set)
    for row in rows:
        if row.nbytes and row.storage and row.kind != "closure":
            groups[row.storage].add(row.path)
    frozen = {path: frozenset(group) for group in groups.values() for path in group}
    return {row.path: frozen.get(row.path, frozenset({row.path})) for row in rows}
