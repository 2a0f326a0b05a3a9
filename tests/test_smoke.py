"""The smoke check on sides that do as they are told."""

from pathlib import Path
from typing import Any

import pytest

import syncguard
from syncguard import smoke
from syncguard.checkpoints import Checkpoint, TensorEntry
from syncguard.errors import UsageError
from syncguard.profiles import PRODUCTION
from syncguard.report import Report, exit_code
from syncguard.smoke import Interrupted, SmokeOptions, run_smoke
from syncguard.verdict import Reason, Status
from tests.checks.fakes import SHAPES, VOCABULARY, FakeEngine, FakeLearner, Heard


class World:
    """Both sides of runs, and what was asked of those who make them."""

    def __init__(self) -> None:
        self.learner, self.engine, self.heard = FakeLearner(), FakeEngine(), Heard()
        self.asked: list[Any] = []
        tensors = {name: TensorEntry("", "bfloat16", shape) for name, shape in SHAPES.items()}
        folder = Path("models") / "made-1234"
        self.checkpoint = Checkpoint(folder, "made", {"vocab_size": VOCABULARY}, tensors)

    def make_model(self, *given: Any) -> Checkpoint:
        self.asked.append(("model", *given))
        return self.checkpoint

    def make_engine(self, *given: Any) -> FakeEngine:
        self.asked.append(("engine", *given))
        return self.engine

    def make_learner(self, *given: Any) -> FakeLearner:
        self.asked.append(("learner", *given))
        return self.learner

    def run(self, **options: Any) -> Report:
        return run_smoke(SmokeOptions(**options), self.heard)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    for name in ("make_model", "make_engine", "make_learner"):
        monkeypatch.setattr(smoke, name, getattr(made, name))
    return made


def test_a_healthy_run_passes_every_condition(world: World) -> None:
    report = world.run()
    assert report.status is Status.PASS
    assert exit_code(report) == 0
    assert not report.interrupted
    assert [sync.number for sync in report.syncs] == [1, 2, 3]
    assert world.heard.reports == [report]
    assert world.heard.verdicts == list(report.verdicts)
    assert world.engine.closed


def test_the_sides_are_made_as_the_options_say(world: World) -> None:
    world.run(engine="a:b", model="m", quantization="none", path="reload", syncs=1, seed=7)
    assert world.asked == [
        ("model", "a:b", "m", "none", {}),
        ("engine", "a:b", world.checkpoint, "none", "reload", 7, {}, "in"),
        ("learner", world.checkpoint, "none", 7, "bf16"),
    ]


@pytest.mark.parametrize(
    ("engine", "model"), [("stub", "stub-dense"), ("vllm", "tiny-qwen3"), ("a:b", "tiny-qwen3")]
)
def test_each_engine_has_a_model_of_its_own(world: World, engine: str, model: str) -> None:
    world.run(engine=engine, syncs=1)
    assert world.asked[0] == ("model", engine, model, "mxfp8", {})


def test_steps_are_told_before_they_begin(world: World) -> None:
    world.run()
    assert world.heard.steps == [
        ("preparing tiny-qwen3", 0, 6),
        ("starting the engine", 1, 6),
        ("building the learner", 2, 6),
        ("sync 1 of 3: the learner's weights", 3, 6),
        ("sync 2 of 3: after one optimizer step", 4, 6),
        ("sync 3 of 3: the same weights again", 5, 6),
    ]


def test_patterns_take_turns_and_the_last_sync_sends_the_same_again(world: World) -> None:
    report = world.run(syncs=5)
    poisons = [call for call in world.engine.calls if call.startswith("poison")]
    assert poisons == ["poison 0xa5", "poison 0x5a", "poison 0xa5", "poison 0x5a"]
    assert world.learner.calls.count("step") == 3
    assert [sync.what for sync in report.syncs] == [
        "the learner's weights",
        "after one optimizer step",
        "after one optimizer step",
        "after one optimizer step",
        "the same weights again",
    ]
    assert [sync.step is not None for sync in report.syncs] == [False, True, True, True, False]
    assert report.syncs[1].step is not None
    assert report.syncs[1].step.learning_rate == 1e-6
    compared = [v.reason for v in report.verdicts if v.check == "equal-sync"]
    assert compared == [Reason.NOT_APPLICABLE] * 4 + [None]
    filled = [v.reason for v in report.verdicts if v.check == "poison-coverage"]
    assert filled == [None] * 4 + [Reason.NOT_APPLICABLE]


def test_one_sync_is_a_first_one(world: World) -> None:
    (sync,) = world.run(syncs=1).syncs
    assert (sync.what, sync.step) == ("the learner's weights", None)
    assert "poison 0xa5" in world.engine.calls
    assert "step" not in world.learner.calls


def test_a_fault_fails_the_run_and_is_told_in_its_report(world: World) -> None:
    world.engine.kernels["q.weight"] = FakeEngine(5).held["q.weight"]
    report = world.run(syncs=1)
    assert report.status is Status.FAIL
    assert exit_code(report) == 1
    assert "exact-probe" in {v.check for v in report.verdicts if v.status is Status.FAIL}


def test_the_environment_tells_both_sides_and_the_request(world: World) -> None:
    environment = world.run(syncs=1, seed=5).environment
    assert environment["learner"] == {"learner": "fake"}
    assert environment["engine"] == {"engine": "fake"}
    assert environment["syncguard"] == syncguard.__version__
    assert {name: environment[name] for name in ("model", "checkpoint", "seed")} == {
        "model": "made",
        "checkpoint": "made-1234",
        "seed": "5",
    }


def test_buckets_are_an_eighth_of_the_model_unless_told(world: World) -> None:
    eighth = sum(tensor.nbytes for tensor in world.learner.model.values()) // 8
    by_default = world.run(syncs=1).syncs[0]
    assert by_default.buckets == 4, f"weights beyond {eighth} bytes have a bucket each"
    assert world.run(syncs=1, bucket_mib=1).syncs[0].buckets == 1
    assert world.run(syncs=1, bucket_mib=1e-9).syncs[0].buckets == 4
    assert world.run(syncs=1, bucket_mib=600 / 2**20).syncs[0].buckets == 3


@pytest.mark.parametrize("call", ["graph_reads", "poison 0x5a", "generate"])
def test_an_interrupted_run_reports_what_it_has(world: World, call: str) -> None:
    world.engine.failing[call] = KeyboardInterrupt()
    with pytest.raises(Interrupted, match="interrupted") as caught:
        world.run()
    report = caught.value.report
    assert report.interrupted
    assert list(report.verdicts) == world.heard.verdicts
    assert len(report.syncs) == (1 if call == "poison 0x5a" else 0)
    assert bool(report.verdicts) == (call != "graph_reads")
    assert report.environment["engine"] == {"engine": "fake"}
    assert world.heard.reports == [], "who asked for the run tells its end"
    assert world.engine.closed
    assert exit_code(report) == 130


def test_an_error_of_a_side_ends_the_run_and_closes_the_engine(world: World) -> None:
    world.learner.failing["step"] = ValueError("diverged")
    with pytest.raises(ValueError, match="diverged"):
        world.run()
    assert world.engine.closed


def test_an_error_of_a_sync_is_a_verdict_and_not_the_end(world: World) -> None:
    world.engine.failing["finish"] = ValueError("no room")
    report = world.run(syncs=2)
    assert [sync.error for sync in report.syncs] == ["ValueError: no room"] * 2
    assert report.status is Status.FAIL


def test_defaults_are_a_request() -> None:
    options = SmokeOptions()
    assert (options.engine, options.model, options.quantization) == ("vllm", "", "mxfp8")
    assert (options.path, options.syncs, options.bucket_mib) == ("", 3, None)
    assert (options.profile, options.cold_warm, options.fault) == ("smoke", False, "")


def test_a_profile_chooses_the_checks_and_production_poisons_nothing(world: World) -> None:
    report = world.run(profile="production", syncs=2)
    assert report.status is Status.PASS
    assert not any(call.startswith("poison") for call in world.engine.calls)
    assert {v.check for v in report.verdicts} == {*(PRODUCTION.checks or ()), "observability"}


def test_an_unknown_profile_is_told_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown process 'x'; known: in, own"):
        SmokeOptions(process="x")
    with pytest.raises(UsageError, match="unknown profile 'x'; known: smoke, production"):
        SmokeOptions(profile="x")


def test_a_cold_engine_is_compared_at_the_last_sync(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[FakeEngine] = []

    def start_cold(*given: Any) -> FakeEngine:
        assert given == ("vllm", world.checkpoint, world.learner, "none", {})
        started.append(FakeEngine(4))
        started[0].begin(0, "")
        started[0].send(list(world.learner.weights()))
        return started[0]

    monkeypatch.setattr(smoke, "start_cold", start_cold)
    report = world.run(cold_warm=True, quantization="none")
    assert [v.status for v in report.verdicts if v.check == "cold-warm"] == [
        Status.NOT_RUN,
        Status.NOT_RUN,
        Status.PASS,
    ]
    assert [engine.closed for engine in started] == [True]


@pytest.mark.parametrize("syncs", [0, -1])
def test_at_least_one_sync_is_asked_for(syncs: int) -> None:
    with pytest.raises(UsageError, match=f"--syncs must be at least 1, got {syncs}"):
        SmokeOptions(syncs=syncs)


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_a_bucket_has_a_size(size: float) -> None:
    with pytest.raises(UsageError, match="--bucket-mib must be a number greater than 0, got"):
        SmokeOptions(bucket_mib=size)
