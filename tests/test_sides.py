"""Sides by name: what there is, what was meant, and what cannot be imported."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from syncguard import sides
from syncguard.checkpoints import Checkpoint
from syncguard.errors import Unsupported, UsageError
from syncguard.sides import (
    ENGINES,
    STUB_MODELS,
    cache_dir,
    default_model,
    make_engine,
    make_learner,
    make_model,
    start_cold,
    trained_in,
)
from syncguard.stubs import StubEngine, StubLearner
from tests.checks.fakes import FakeEngine, FakeLearner

CHECKPOINT = Checkpoint(Path("nowhere"), "some-model", {}, {})


@pytest.fixture
def adapters() -> Iterator[Any]:
    """An importable module for engines of others."""
    module = types.ModuleType("fake_adapters")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def make(name: str) -> Any:
    return make_engine(name, CHECKPOINT, "mxfp8", "reload", 7)


def told(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        make(name)
    return str(caught.value)


def test_a_known_engine_is_made_by_its_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "vllm", lambda *given: given)  # type: ignore[arg-type]
    assert make("vllm") == (CHECKPOINT, "mxfp8", "reload", 7)


def test_a_factory_of_others_is_given_the_same(adapters: Any) -> None:
    given: list[object] = []

    def start(*arguments: object) -> FakeEngine:
        given.extend(arguments)
        return FakeEngine()

    adapters.start = start
    assert isinstance(make("fake_adapters:start"), FakeEngine)
    assert given == [CHECKPOINT, "mxfp8", "reload", 7]


@pytest.mark.parametrize("error", [ValueError("no device"), SystemExit(0)])
def test_a_factory_that_fails_is_told_as_what_it_is(adapters: Any, error: BaseException) -> None:
    """Even one that ends the process with success: nothing was checked."""

    def start(*_: object) -> None:
        raise error

    adapters.start = start
    told = f"'fake_adapters:start' did not start\n  got: {type(error).__name__}: {error}\n"
    with pytest.raises(UsageError) as raised:
        make("fake_adapters:start")
    assert told in str(raised.value)


def test_our_own_errors_pass_through_a_factory(adapters: Any) -> None:
    def start(*_: object) -> None:
        raise Unsupported("not on this device")

    adapters.start = start
    with pytest.raises(Unsupported, match="not on this device"):
        make("fake_adapters:start")


def test_a_factory_that_gives_no_engine_is_told_what_is_missing(adapters: Any) -> None:
    adapters.start = lambda *_: None
    with pytest.raises(UsageError, match="gave a NoneType, which is no engine\n  got: nothing"):
        make("fake_adapters:start")


def test_an_engine_in_a_process_of_its_own_is_given_the_same_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("syncguard.engines.hosting.HostedEngine", lambda *given: given)
    monkeypatch.setitem(ENGINES, "vllm", lambda *given: given)  # type: ignore[arg-type]
    made: Any = make_engine("vllm", CHECKPOINT, "mxfp8", "reload", 7, {}, "own")
    factory, given = made
    assert factory == "syncguard.sides:start_hosted"
    assert given == ("vllm", CHECKPOINT, "mxfp8", "reload", 7, {})


def test_the_stub_stays_here() -> None:
    model = make_model("stub", "stub-dense", "mxfp8")
    with pytest.raises(UsageError, match="leave --process out"):
        make_engine("stub", model, "mxfp8", "", 0, {}, "own")


@pytest.mark.parametrize(("name", "meant"), [("vlm", "vllm"), ("VLLM", ""), ("stubb", "stub")])
def test_an_unknown_engine_is_told_what_was_meant(name: str, meant: str) -> None:
    text = told(name)
    assert text.startswith(f"unknown engine {name!r}")
    assert ("; did you mean " in text) == bool(meant)
    if meant:
        assert f"; did you mean {meant}?\n" in text
    assert text.endswith(f"  expected: {', '.join(ENGINES)}, or MODULE:FACTORY of an adapter")


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("no_such_module:start", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("fake_adapters:start", "AttributeError: module 'fake_adapters' has no attribute 'start'"),
        ("fake_adapters:", "AttributeError: module 'fake_adapters' has no attribute ''"),
        (":start", "ValueError: Empty module name"),
        (".relative:start", "TypeError: the 'package' argument is required"),
        ("fake_adapters:limit", "TypeError: limit is a int, not a function"),
    ],
)
def test_a_factory_that_cannot_be_imported_is_told_why(adapters: Any, name: str, got: str) -> None:
    adapters.limit = 3
    text = told(name)
    assert text.startswith(f"engine {name!r} cannot be imported\n  got: {got}")
    assert "what to do: name an importable module and a function in it" in text


def test_a_module_that_breaks_while_it_is_imported_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_adapter.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "got: RuntimeError: no licence" in told("broken_adapter:start")


@pytest.mark.parametrize(
    ("engine", "learner"),
    [("none", "none"), ("int8-w8a8", "int8"), ("mxfp8", "mxfp8"), ("modelopt-mxfp8", "mxfp8")],
)
def test_a_learner_trains_for_what_the_engine_holds(engine: str, learner: str) -> None:
    assert trained_in(engine) == learner


def test_a_stub_serves_models_of_its_own() -> None:
    model = make_model("stub", "stub-tied", "mxfp8")
    engine = make_engine("stub", model, "none", "", 3)
    learner = make_learner(model, "none", 3)
    assert isinstance(engine, StubEngine)
    assert isinstance(learner, StubLearner)
    assert engine.topology == learner.topology
    assert (engine.topology.tied, engine.topology.quantization) == (True, "none")
    assert model.config["vocab_size"] == engine.topology.vocab
    assert {layer.weight for layer in learner.layers()} == {*model.tensors, "lm_head.weight"}


@pytest.mark.parametrize("name", STUB_MODELS)
def test_every_stub_model_can_be_made(name: str) -> None:
    model = make_model("stub", name, "mxfp8", {"layers": 1})
    assert model.name == name
    assert not any(".layers.1." in weight for weight in model.tensors)


def test_a_stub_takes_neither_other_models_nor_other_paths() -> None:
    model = make_model("stub", "stub-dense", "mxfp8")
    with pytest.raises(UsageError, match="the stub takes a model of its own, see --model"):
        make_engine("stub", CHECKPOINT, "mxfp8", "", 0)
    with pytest.raises(UsageError, match="the stub has one path for syncs: leave --path out"):
        make_engine("stub", model, "mxfp8", "reload", 0)


def test_what_an_engine_does_not_know_is_told_by_its_option() -> None:
    model = make_model("stub", "stub-dense", "mxfp8")
    with pytest.raises(UsageError, match="does not know --compile, --tp\n  what to do: leave it"):
        make_engine("stub", model, "mxfp8", "", 0, {"ranks": 2, "compiled": True})


def test_an_adapter_in_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "found_here.py").write_text("def make(*given): raise RuntimeError('found')\n")
    model = make_model("stub", "stub-dense", "mxfp8")
    with pytest.raises(UsageError, match="got: RuntimeError: found"):
        make_engine("found_here:make", model, "mxfp8", "", 0)


@pytest.mark.parametrize(("name", "hint"), [("stub-mo", "; did you mean 'stub-moe'?"), ("x", "")])
def test_an_unknown_stub_model_is_told_what_was_meant(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_model("stub", name, "mxfp8")
    expected = f"  expected: {', '.join(STUB_MODELS)}"
    assert str(caught.value) == f"model {name!r} is none of the stub's{hint}\n{expected}"


def test_any_other_engine_takes_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def resolve_model(*args: Any, **options: Any) -> Checkpoint:
        given.append((args, options))
        return CHECKPOINT

    monkeypatch.setattr(sides, "resolve_model", resolve_model)
    for quantization, blocks in (("none", "none"), ("mxfp8", "mxfp8"), ("modelopt", "mxfp8")):
        assert make_model("a.b:c", "tiny-qwen3", quantization) is CHECKPOINT
        assert given.pop() == (("tiny-qwen3", cache_dir()), {"quantization": blocks})


class Started:
    """Starts nothing, and keeps how it was asked."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self.given, self.options = given, options


@pytest.fixture
def _adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for adapters whose engines need not be installed."""
    vllm: Any = types.ModuleType("syncguard.engines.vllm")
    vllm.VllmEngine, vllm.PATHS = Started, ("first", "second")
    sglang: Any = types.ModuleType("syncguard.engines.sglang.adapter")
    sglang.SglangEngine, sglang.PATHS = Started, ("first", "second")
    for module in (vllm, sglang):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("_adapters")
@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.parametrize(("path", "taken"), [("", "first"), ("second", "second")])
def test_engines_start_on_other_weights_and_take_their_first_path(
    name: str, path: str, taken: str
) -> None:
    engine: Any = make_engine(name, CHECKPOINT, "mxfp8", path, 7)
    assert engine.given == (CHECKPOINT.path, "mxfp8")
    assert engine.options == {"path": taken, "load_format": "dummy", "seed": 7}


@pytest.mark.usefixtures("_adapters")
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_cold_engine_loads_what_the_learner_holds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Any] = []

    def write_copy(checkpoint: Checkpoint, weights: Any, folder: Path) -> Checkpoint:
        copied.append((checkpoint, list(weights), folder.is_dir(), folder))
        return Checkpoint(folder, "copy", {}, {})

    monkeypatch.setattr(sides, "write_copy", write_copy)
    learner = FakeLearner()
    engine: Any = start_cold(name, CHECKPOINT, learner, "none")
    ((checkpoint, weights, existed, folder),) = copied
    assert checkpoint is CHECKPOINT
    assert [weight for weight, _ in weights] == list(learner.model)
    assert existed
    assert not folder.exists()
    assert engine.given == (folder, "none")
    assert engine.options == {"path": "first", "load_format": "auto", "seed": 0}


@pytest.mark.usefixtures("_adapters")
@pytest.mark.parametrize(("name", "hosted"), [("sglang", True), ("vllm", False)])
def test_ranks_run_where_they_cannot_end_this_process(
    name: str, hosted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncguard.engines.hosting.HostedEngine", Started)
    engine: Any = make_engine(name, CHECKPOINT, "mxfp8", "", 7, {"ranks": 2})
    given = (name, CHECKPOINT, "mxfp8", "", 7, {"ranks": 2})
    if hosted:
        assert engine.given == ("syncguard.sides:start_hosted", given)
        started: Any = sides.start_hosted(*given)
        assert started.options["ranks"] == 2
    else:
        assert engine.options["ranks"] == 2


@pytest.mark.parametrize(
    ("engine", "settings", "model"),
    [
        ("sglang", {}, "tiny-qwen3"),
        ("sglang", {"ranks": 2}, "tiny-qwen3-wide"),
        ("vllm", {"ranks": 2}, "tiny-qwen3"),
        ("stub", {}, "stub-dense"),
        ("a.b:c", {"ranks": 2}, "tiny-qwen3"),
    ],
)
def test_ranks_are_checked_with_a_model_that_they_can_share(
    engine: str, settings: dict[str, int], model: str
) -> None:
    assert default_model(engine, settings) == model


def test_an_engine_that_loads_no_checkpoint_cannot_be_started_cold() -> None:
    told = "stub cannot be started on a checkpoint; these can: sglang, vllm"
    with pytest.raises(Unsupported, match=told):
        start_cold("stub", CHECKPOINT, FakeLearner(), "none")


def test_models_are_cached_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "some/where")
    assert cache_dir() == Path("some/where/syncguard/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir() == Path.home() / ".cache" / "syncguard" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "syncguard" / "models"
