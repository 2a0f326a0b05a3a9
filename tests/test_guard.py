"""A guarded sync: what is noted, in which order, what survives, and what is remembered."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks import CHECKS, Check
from syncguard.checks.judgement import passed
from syncguard.errors import EngineLost, Unsupported
from syncguard.guard import Guard, bucketed
from syncguard.observations import Poisoned, StepReport, SyncRecord
from syncguard.observing import SyncContext
from syncguard.profiles import PRODUCTION
from syncguard.timelimit import TimeLimitExceeded
from syncguard.verdict import Coverage, Reason, Status, Verdict
from tests.checks.fakes import SHAPES, VOCABULARY, FakeEngine, FakeLearner, Heard

BUCKET = 600


class Sides:
    """Both sides, the guard around them, and the contexts that its checks saw."""

    def __init__(self, **options: Any) -> None:
        self.learner, self.engine, self.heard = FakeLearner(), FakeEngine(), Heard()
        self.contexts: list[SyncContext] = []
        options.setdefault("vocabulary", VOCABULARY)
        self.guard = Guard(self.learner, self.engine, self.heard, **options)

    def sync(self, **options: Any) -> dict[str, Verdict]:
        _, verdicts = self.guard.sync(bucket_bytes=BUCKET, **options)
        return {verdict.check: verdict for verdict in verdicts}

    def odd(self, **options: Any) -> dict[str, str]:
        """Checks that neither pass nor are out of place, with their status."""
        return {
            name: str(verdict.status)
            for name, verdict in self.sync(**options).items()
            if verdict.status is not Status.PASS and verdict.counts
        }


def watching(contexts: list[SyncContext], needs: tuple[str, ...] = ()) -> Check:
    """A check that keeps the context of the view that it is asked on."""

    def judge(**observed: Any) -> Any:
        contexts.append(observed["watched"])
        return passed("seen", Coverage(1, 1))

    return Check("watching", "C2", judge, ("watched", *needs), "Watch.")


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sides]:
    """Makes sides whose only check keeps the context of each sync."""
    from syncguard import observing

    observers = {**observing.OBSERVERS, "watched": lambda view: view.context}
    monkeypatch.setattr(observing, "OBSERVERS", observers)

    def make(*needs: str, **options: Any) -> Sides:
        contexts: list[SyncContext] = []
        sides = Sides(checks=[watching(contexts, needs)], **options)
        sides.contexts = contexts
        return sides

    return make


dtypes = st.sampled_from([torch.uint8, torch.float32])
tensors = st.lists(st.tuples(st.text("ab", max_size=3), st.integers(0, 9), dtypes), max_size=12)


@settings(deadline=None)
@given(tensors, st.integers(-1, 40))
def test_buckets_partition_the_stream(
    sizes: list[tuple[str, int, torch.dtype]], limit: int
) -> None:
    stream = [(name, torch.zeros(size, dtype=dtype)) for name, size, dtype in sizes]
    buckets = list(bucketed(iter(stream), limit))
    flat = [entry for bucket in buckets for entry in bucket]
    assert [(name, id(tensor)) for name, tensor in flat] == [(n, id(t)) for n, t in stream]
    assert all(buckets)
    filled = [sum(tensor.nbytes for _, tensor in bucket) for bucket in buckets]
    shared = [size for size, bucket in zip(filled, buckets, strict=True) if len(bucket) > 1]
    assert all(size <= limit for size in shared)
    for size, following in zip(filled, buckets[1:], strict=False):
        assert size + following[0][1].nbytes > limit, "a bucket is as full as it can be"


def test_buckets_are_made_as_they_are_sent() -> None:
    """A model is never held twice: each weight is asked for when there is room for it."""
    learner = FakeLearner()
    buckets = bucketed(learner.weights(), BUCKET)
    assert learner.calls == []
    next(buckets)
    assert learner.calls.count("weights") < len(SHAPES)


def test_a_healthy_sync_passes_every_check_that_applies() -> None:
    sides = Sides()
    assert sides.odd(poison=0xA5) == {}
    assert sides.odd(poison=0x5A, step=sides.learner.step(1e-6)) == {}
    verdicts = sides.sync(same_weights=True)
    assert verdicts["equal-sync"].status is Status.PASS
    assert {v.condition for v in verdicts.values()} >= {f"C{n}" for n in range(1, 9)}
    assert all(v.coverage.complete for v in verdicts.values())


def test_the_summary_tells_what_was_sent() -> None:
    sides = Sides()
    step = StepReport(1e-6, 0.5, 1, 1, 1)
    summary, verdicts = sides.guard.sync(bucket_bytes=BUCKET, what="new weights", step=step)
    nbytes = sum(tensor.nbytes for tensor in sides.learner.model.values())
    assert (summary.number, summary.version, summary.served_version) == (1, "1", "1")
    assert (summary.what, summary.step, summary.error) == ("new weights", step, "")
    assert (summary.tensors, summary.bytes) == (4, nbytes)
    assert summary.buckets == len(list(bucketed(sides.learner.weights(), BUCKET))) == 3
    assert summary.seconds == 0.25
    assert sides.heard.verdicts == verdicts
    assert {verdict.sync for verdict in verdicts} == {1}
    assert sides.guard.sync(bucket_bytes=BUCKET)[0].number == 2


def test_what_a_sync_does_not_time_itself_is_timed() -> None:
    sides = Sides(checks=[])
    finish = sides.engine.finish

    def untimed() -> SyncRecord:
        time.sleep(0.02)
        record = finish()
        record.seconds = 0
        return record

    sides.engine.finish = untimed  # type: ignore[method-assign]
    summary, _ = sides.guard.sync(bucket_bytes=BUCKET)
    assert 0.02 <= summary.seconds < 1


def test_reads_come_before_places_and_poison_after_everything() -> None:
    sides = Sides(checks=[])
    sides.sync(poison=0xA5, same_weights=True)
    before = sides.engine.calls[: sides.engine.calls.index("begin")]
    assert before == ["graph_reads", "storage", "storage", "state", "poison 0xa5", "weight_prints"]


def test_reads_are_observed_once_and_state_and_poison_on_demand() -> None:
    sides = Sides(checks=[])
    sides.sync()
    sides.engine.calls.clear()
    sides.sync()
    assert sides.engine.calls == ["storage", "begin", "send", "send", "send", "finish"]


def test_poison_is_what_the_engine_holds_before_the_sync(watched: Callable[..., Sides]) -> None:
    sides = watched()
    for pattern in (0xA5, 0x5A):
        sides.sync(poison=pattern)
        poisoned = sides.contexts[-1].poisoned
        assert isinstance(poisoned, Poisoned)
        assert poisoned.pattern == pattern
        assert poisoned.prints.keys() == poisoned.nbytes.keys() == SHAPES.keys()
        rows = poisoned.prints["q.weight"].rows["elements"]
        assert (rows == rows[0]).all()
    sides.sync()
    assert sides.contexts[-1].poisoned is None


def test_the_context_carries_what_was_noted(watched: Callable[..., Sides]) -> None:
    sides = watched(seed=10)
    sides.sync(same_weights=True)
    context = sides.contexts[0]
    assert context.state_before
    assert context.state_before != sides.engine.state()
    assert {row.path for row in context.storage_before} == context.graph_reads.paths
    assert context.graph_reads.captured
    assert (context.seed, context.vocabulary, context.same_weights) == (11, VOCABULARY, True)
    assert context.record.number == 1
    sides.sync()
    context = sides.contexts[1]
    assert (context.seed, context.same_weights, context.state_before) == (12, False, {})


@pytest.mark.parametrize("call", ["begin", "send", "finish", "weights"])
def test_an_error_of_a_sync_is_a_failure_that_the_next_sync_repairs(call: str) -> None:
    sides = Sides()
    assert sides.odd() == {}
    broken = sides.learner if call == "weights" else sides.engine
    broken.failing[call] = ValueError("no room")
    summary, verdicts = sides.guard.sync(bucket_bytes=BUCKET)
    found = {verdict.check: verdict for verdict in verdicts}
    assert summary.error == "ValueError: no room"
    assert sides.engine.calls.count("abandon") == 1
    assert found["session"].status is Status.FAIL
    assert "got: ValueError: no room" in found["session"].message
    assert found["finite"].reason is Reason.UNSUPPORTED
    assert found["observability"].status is Status.PASS
    assert found["served-version"].reason is Reason.NOT_APPLICABLE
    del broken.failing[call]
    assert sides.odd() == {}


def test_an_engine_that_cannot_give_up_a_session_still_has_a_record() -> None:
    sides = Sides()
    sides.engine.failing = {"begin": ValueError("busy"), "abandon": RuntimeError("no session")}
    summary, _ = sides.guard.sync(bucket_bytes=BUCKET)
    assert (summary.number, summary.version, summary.served_version) == (1, "1", "")
    assert summary.error == "ValueError: busy; then abandon: RuntimeError: no session"
    assert summary.seconds > 0


@pytest.mark.parametrize("call", ["begin", "finish"])
def test_a_record_of_another_sync_is_none_of_this_one(call: str) -> None:
    sides = Sides()
    sides.sync()
    earlier = sides.engine.record
    assert earlier is not None
    if call == "begin":  # the engine then gives up, and tells of, the session before
        sides.engine.failing["begin"] = ValueError("busy")
    else:
        sides.engine.finish = lambda: earlier  # type: ignore[method-assign]
    summary, verdicts = sides.guard.sync(bucket_bytes=BUCKET)
    told = "ValueError: busy" if call == "begin" else "the engine's record is of sync 1"
    assert (summary.number, summary.version, summary.error) == (2, "2", told)
    assert {verdict.sync for verdict in verdicts} == {2}


def test_the_user_can_stop_a_sync() -> None:
    sides = Sides()
    sides.engine.failing["send"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        sides.sync()


@pytest.mark.parametrize(
    ("call", "checks", "options"),
    [
        ("graph_reads", {"storage-identity"}, {}),
        ("storage", {"storage-identity", "alias-graph", "destinations"}, {}),
        ("state", {"equal-sync"}, {"same_weights": True}),
        ("poison 0xa5", {"poison-coverage"}, {"poison": 0xA5}),
    ],
)
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unsupported("not on this engine"), Reason.UNSUPPORTED),
        (ValueError("broken"), Reason.ERROR),
        (SystemExit(3), Reason.ERROR),
        (TimeLimitExceeded("late"), Reason.TIMEOUT),
    ],
)
def test_what_cannot_be_noted_before_a_sync_is_told_by_the_checks_that_need_it(
    call: str, checks: set[str], options: dict[str, Any], error: BaseException, reason: Reason
) -> None:
    sides = Sides()
    sides.engine.failing[call] = error
    verdicts = sides.sync(**options)
    silent = {name for name, v in verdicts.items() if v.reason is reason and v.counts}
    assert silent == checks
    assert verdicts["ledger"].status is Status.PASS


def test_reads_that_failed_are_asked_for_again() -> None:
    sides = Sides()
    sides.engine.failing["graph_reads"] = ValueError("not yet")
    assert sides.odd() == {"storage-identity": "not_run"}
    del sides.engine.failing["graph_reads"]
    assert sides.odd() == {}


def test_a_note_that_takes_too_long_is_cut_off() -> None:
    sides = Sides(timeout_s=0.05)
    sides.engine.failing["graph_reads"] = lambda: time.sleep(30)
    verdicts = sides.sync()
    assert verdicts["storage-identity"].reason is Reason.TIMEOUT
    assert "no answer within 0.05 s" in verdicts["storage-identity"].message


def test_a_check_that_takes_too_long_is_cut_off() -> None:
    sides = Sides(timeout_s=0.05, checks=[CHECKS["exact-probe"]])
    sides.engine.failing["probe_exact"] = lambda: time.sleep(30)
    assert sides.sync()["exact-probe"].reason is Reason.TIMEOUT


def test_the_same_weights_are_compared_only_with_a_sync_that_went_well() -> None:
    sides = Sides()
    sides.engine.failing["finish"] = ValueError("x")
    sides.sync()
    del sides.engine.failing["finish"]
    verdict = sides.sync(same_weights=True)["equal-sync"]
    assert verdict.reason is Reason.NOT_APPLICABLE
    assert sides.sync(same_weights=True)["equal-sync"].status is Status.PASS


def test_same_weights_that_are_not_the_same_fail() -> None:
    sides = Sides()
    sides.sync()
    sides.learner.step(1e-6)
    assert sides.sync(same_weights=True)["equal-sync"].status is Status.FAIL


def test_four_earlier_versions_are_remembered_newest_first(watched: Callable[..., Sides]) -> None:
    sides = watched("learner_prints", "learner_values")
    expected = []
    for _ in range(6):
        expected.append(sides.learner.prints()["q.weight"].rows["elements"])
        sides.sync()
        sides.learner.step(1e-6)
    assert sides.contexts[0].history == {}
    assert list(sides.contexts[1].history) == ["version 1"]
    last = sides.contexts[-1]
    labels = ["version 5", "version 4", "version 3", "version 2"]
    assert list(last.history) == list(last.value_history) == labels
    rows = last.history["version 4"]["q.weight"].rows["elements"]
    assert (rows == expected[3]).all()
    assert last.value_history["version 4"].keys() == {"embed.weight", "q.weight", "head.weight"}


def test_what_no_check_looked_at_is_not_remembered_and_costs_nothing(
    watched: Callable[..., Sides],
) -> None:
    sides = watched()
    sides.sync()
    sides.sync()
    assert sides.contexts[1].history == {}
    assert sides.contexts[1].value_history == {}
    assert not {"prints", "value_prints"} & set(sides.learner.calls)


def test_a_learner_that_cannot_be_observed_ends_no_run() -> None:
    sides = Sides()
    sides.learner.failing["prints"] = Unsupported("not this learner")
    verdicts = sides.sync()
    assert verdicts["weight-bytes"].reason is Reason.UNSUPPORTED
    assert verdicts["session"].status is Status.PASS
    assert sides.sync()["session"].status is Status.PASS


def test_a_stale_version_is_named() -> None:
    sides = Sides()
    sides.sync()
    sides.learner.step(1e-6)
    send = sides.engine.send

    def all_but_q(bucket: Any) -> None:
        send([(name, tensor) for name, tensor in bucket if name != "q.weight"])

    sides.engine.send = all_but_q  # type: ignore[method-assign]
    verdict = sides.sync()["weight-bytes"]
    assert verdict.subject == "q.weight"
    assert "holds row 0 of the learner's q.weight, version 1" in verdict.message


def test_a_profile_chooses_checks_and_hands_out_turns() -> None:
    sides = Sides(profile=PRODUCTION)
    verdicts = sides.sync()
    assert verdicts.keys() == {*PRODUCTION.checks, "observability"}  # type: ignore[misc]
    assert verdicts["block-probe"].status is Status.PASS
    assert not {"probe_exact", "probe_random", "generate"} & set(sides.engine.calls)


def test_named_checks_go_before_the_profile() -> None:
    sides = Sides(profile=PRODUCTION, checks=[CHECKS["session"]])
    assert sides.sync().keys() == {"session", "observability"}


def test_a_cold_engine_is_started_if_it_is_asked_for() -> None:
    sides = Sides()

    def start_cold() -> FakeEngine:
        cold = FakeEngine(5)
        cold.begin(0, "")
        cold.send(list(sides.learner.weights()))
        return cold

    assert sides.sync()["cold-warm"].reason is Reason.NOT_APPLICABLE
    assert sides.sync(start_cold=start_cold)["cold-warm"].status is Status.PASS
    assert sides.sync(start_cold=lambda: FakeEngine(5))["cold-warm"].status is Status.FAIL


def test_a_view_is_made_anew_for_every_sync() -> None:
    sides = Sides(checks=[CHECKS["layer-set"]])
    sides.sync()
    sides.sync()
    assert sides.learner.calls.count("learner.layers") == 2


@pytest.mark.parametrize("moment", ["begin", "send", "finish"])
def test_where_the_engine_is_lost_there_is_no_sync_to_judge(moment: str) -> None:
    """Nothing serves any more: nothing is violated, and nothing is checked."""
    sides = Sides()
    sides.engine.failing[moment] = EngineLost("the engine is gone: killed")
    verdicts = sides.sync()
    counted = [v for name, v in verdicts.items() if name != "observability"]
    assert {(v.status, v.reason) for v in counted} == {(Status.NOT_RUN, Reason.ERROR)}
    assert all("EngineLost: the engine is gone: killed" in v.message for v in counted)
    assert "abandon" not in sides.engine.calls


def test_after_the_loss_of_one_engine_a_sync_can_be_judged_again() -> None:
    sides = Sides()
    sides.engine.failing["send"] = EngineLost("gone")
    sides.sync()
    del sides.engine.failing["send"]
    assert sides.odd() == {}


@pytest.mark.parametrize("given", [None, "done"])
def test_an_adapter_that_gives_no_record_fails_its_sync_and_is_told(given: Any) -> None:
    engine = FakeEngine()
    engine.finish = lambda: given  # type: ignore[method-assign]
    guard = Guard(FakeLearner(), engine, Heard(), vocabulary=VOCABULARY)
    summary, _ = guard.sync(bucket_bytes=1 << 13)
    assert f"finish() of the adapter must give a SyncRecord, got {given!r}" in summary.error
