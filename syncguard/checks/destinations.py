"""C5 for the sync to come: every parameter still takes what it took."""

from collections.abc import Sequence

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import StoredTensor
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["destinations"]

_LOADED = ("parameter", "buffer")


@check("destinations", "C5")
def destinations(
    storage_before: Sequence[StoredTensor], storage: Sequence[StoredTensor]
) -> Judgement:
    """Compare shape and dtype of every parameter and buffer before and after the sync.

    Post-processing that leaves its own layout under a primary name breaks the next sync, or lets
    it write into another layout than the one it was made for. A parameter that no forward reads
    is one of them all the same.
    """
    before = {row.path: row for row in storage_before if row.kind in _LOADED}
    after = {row.path: row for row in storage if row.kind in _LOADED}
    if not before:
        return not_run(Reason.MISSING_INPUT, "the engine reported no parameters")
    wrong = {
        path: _change(row, after.get(path))
        for path, row in before.items()
        if _form(row) != _form(after.get(path))
    }
    nbytes = sum(row.nbytes for row in before.values())
    coverage = Coverage(len(before), len(before), nbytes, nbytes)
    if not wrong:
        return passed(
            f"{counted(len(before), 'parameter keeps its', 'parameters keep their')} shape and "
            "dtype",
            coverage,
            measured=0,
            bound=0,
        )
    path, text = next(iter(wrong.items()))
    return failed(
        explain(
            f"{counted(len(wrong), 'parameter has', 'parameters have')} another form than before "
            "the sync",
            where=listed(list(wrong)),
            expected="shape and dtype of before the sync",
            got=f"{path}: {text}",
            cause="post-processing stored a padded or repacked tensor under the primary name, or "
            "was skipped",
            todo="keep a kernel's layout under a name of its own",
        ),
        coverage,
        subject=path,
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )


def _form(row: StoredTensor | None) -> tuple[object, ...] | None:
    return None if row is None else (row.shape, row.dtype)


def _change(before: StoredTensor, after: StoredTensor | None) -> str:
    if after is None:
        return "is gone"
    return f"{before.dtype} {list(before.shape)} became {after.dtype} {list(after.shape)}"
