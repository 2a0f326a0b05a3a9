"""C12: what was exported is what the learner trains."""

from collections.abc import Mapping

from syncguard.checks.judgement import Judgement, counted, failed, listed, not_run, passed
from syncguard.checks.registry import check
from syncguard.observations import SyncRecord
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["checkpoint_loaded", "exported_weights", "learner_unchanged"]


@check("exported-weights", "C12")
def exported_weights(
    sync_record: SyncRecord, exported: Mapping[str, int], wire: Mapping[str, int]
) -> Judgement:
    """Compare each tensor on the wire with the learner's own.

    Weight bytes tell that the two ends differ; this tells at which end. It finds nothing that
    they do not, and stays for that. What a sync that failed did not come to send does not count.
    """
    if not wire or not exported:
        return not_run(Reason.NOT_APPLICABLE, "the learner does not tell its state")
    wrong = {
        name: "another tensor was sent" if name in exported else "was not sent"
        for name in wire
        if exported.get(name) != wire[name] and (name in exported or not sync_record.error)
    }
    for name in sorted(exported.keys() - wire.keys()):
        wrong[name] = "is none of the learner's names"
    seen = len(wire.keys() & exported.keys()) if sync_record.error else len(wire)
    return _judged(
        wrong,
        Coverage(seen, len(wire)),
        good="were exported as the learner holds them",
        bad="exported otherwise than the learner holds them",
        cause="the exporter reads another source: base weights without their adapter, a cache of "
        "an earlier sync, another dtype or layout",
        todo="export from the tensors that the forward uses, at the time of the sync",
    )


@check("learner-unchanged", "C12")
def learner_unchanged(
    learner_state_before: Mapping[str, int] | None, learner_state: Mapping[str, int] | None
) -> Judgement:
    """Compare the learner before and after the sync: to export must not train."""
    if not learner_state_before or learner_state is None:
        return not_run(Reason.NOT_APPLICABLE, "the learner does not tell its state")
    wrong = {
        name: "changed without an optimizer step" if name in learner_state else "is gone"
        for name in sorted(learner_state_before)
        if learner_state.get(name) != learner_state_before[name]
    }
    return _judged(
        wrong,
        Coverage(len(learner_state_before), len(learner_state_before)),
        good="are unchanged by the sync",
        bad="changed by the sync itself",
        cause="the export merges an adapter in place, and taking it out again is not exact",
        todo="merge into a copy, or keep the weights as they were",
    )


@check("checkpoint-loaded", "C12")
def checkpoint_loaded(
    checkpoint_state: Mapping[str, int] | None, learner_state: Mapping[str, int] | None
) -> Judgement:
    """Before the first step the learner holds its checkpoint, buffers included."""
    if not checkpoint_state or not learner_state:
        return not_run(
            Reason.NOT_APPLICABLE, "the learner has been trained, or does not tell its checkpoint"
        )
    wrong = {
        name: "differs from the checkpoint" if name in learner_state else "is not in the learner"
        for name in sorted(checkpoint_state)
        if learner_state.get(name) != checkpoint_state[name]
    }
    return _judged(
        wrong,
        Coverage(len(checkpoint_state), len(checkpoint_state)),
        good="are those of the checkpoint",
        bad="other than in the checkpoint that the learner started from",
        cause="buffers were initialized after the checkpoint was loaded",
        todo="initialize first, then load",
    )


def _judged(
    wrong: Mapping[str, str], coverage: Coverage, *, good: str, bad: str, cause: str, todo: str
) -> Judgement:
    if not wrong:
        told = f"{coverage.layers_checked} of {coverage.layers_total} tensors {good}"
        return passed(told, coverage, measured=0, bound=0)
    name, text = next(iter(wrong.items()))
    return failed(
        explain(
            f"{counted(len(wrong), 'tensor is', 'tensors are')} {bad}",
            where=listed(list(wrong)),
            expected="the learner's own bytes",
            got=f"{name}: {text}",
            cause=cause,
            todo=todo,
        ),
        coverage,
        subject=name,
        measured=len(wrong),
        bound=0,
        evidence=wrong.items(),
    )
