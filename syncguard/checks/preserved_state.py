"""C10: what a sync does not carry is unchanged by it."""

from collections.abc import Mapping

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["preserved_state"]


@check("preserved-state", "C10")
def preserved_state(
    preserved_before: Mapping[str, int] | None, preserved: Mapping[str, int] | None
) -> Judgement:
    """Compare every tensor that no sync brings, before and after it.

    Rotary tables, index caches in module globals, scratch, a frozen draft model: a pause may
    release their memory, and nothing in the stream would bring them back. What vanished is C4's
    to tell, since a forward reads it or does not.
    """
    if not preserved_before or preserved is None:
        return not_run(Reason.NOT_APPLICABLE, "the engine does not tell what no sync brings")
    both = sorted(preserved_before.keys() & preserved.keys())
    if not both:
        return not_run(Reason.MISSING_INPUT, "none of these tensors is left to compare")
    changed = [path for path in both if preserved_before[path] != preserved[path]]
    coverage = Coverage(len(both), len(preserved_before))
    if not changed:
        return passed(
            f"{counted(len(both), 'tensor', 'tensors')} that no sync brings "
            f"{'is' if len(both) == 1 else 'are'} unchanged",
            coverage,
            measured=0,
            bound=0,
        )
    return failed(
        explain(
            f"{counted(len(changed), 'tensor', 'tensors')} that no sync brings changed in one",
            where=listed(changed),
            expected="the content of before the sync",
            got=f"{changed[0]} has other content",
            cause="a pause released its memory and kept no copy, or a fallback filled it anew",
            todo="keep aside what the stream does not bring: buffers, plain attributes, globals, "
            "draft models",
        ),
        coverage,
        subject=changed[0],
        measured=len(changed),
        bound=0,
        evidence=[(path, "changed") for path in changed],
    )
