"""Engines that a maintainer brings: ``--syncguard-engine MODULE:FACTORY``."""

import pytest

from tests.plugin.conftest import Running


def test_a_factory_names_what_it_needs_and_may_bring_its_learner(running: Running) -> None:
    result = running(
        """
        def test_sync(syncguard_guard):
            syncguard_guard.sync()
            assert syncguard_guard.learner.environment()["seed"] == "5"
        """,
        "--syncguard-engine=mine:make",
        "--syncguard-seed=5",
        mine="""
        from syncguard.stubs import make_stub_engine, make_stub_learner

        def make(seed):
            return make_stub_learner(seed=seed), make_stub_engine(seed=seed)
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_factory_may_give_an_object_with_both_sides(running: Running) -> None:
    result = running(
        """
        def test_sync(syncguard_learner, syncguard_engine):
            assert syncguard_learner.topology is syncguard_engine.topology
        """,
        "--syncguard-engine=mine:Rig",
        mine="""
        from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

        class Rig:
            def __init__(self, quantization, path):
                assert (quantization, path) == ("mxfp8", "")
                topology = Topology(layers=1)
                self.learner = make_stub_learner(topology)
                self.engine = make_stub_engine(topology)
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_factory_of_a_smoke_check_gets_the_same_four_arguments(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncguard.plugin.sides.make_model", lambda *told: told)
    result = running(
        """
        def test_sync(syncguard_engine):
            seen = syncguard_engine.seen
            assert seen == (("mine:make", "tiny-qwen3-tied", "none"), "none", "reload", 3)
        """,
        "--syncguard-engine=mine:make",
        "--syncguard-model=tiny-qwen3-tied",
        "--syncguard-quantization=none",
        "--syncguard-path=reload",
        "--syncguard-seed=3",
        mine="""
        from syncguard.stubs import make_stub_engine, make_stub_learner

        def make(where, how, path, number):
            engine = make_stub_engine()
            engine.seen = where, how, path, number
            return make_stub_learner(), engine
        """,
    )
    result.assert_outcomes(passed=1)


def test_a_factory_that_gives_no_engine(running: Running) -> None:
    result = running(
        "def test_sync(syncguard_guard): pass",
        "--syncguard-engine=mine:make",
        mine="""
        class Half:
            def begin(self, number, version): ...

        def make(seed):
            return Half()
        """,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*its factory gave a Half, which is no engine", "*got: nothing named abandon, close, *"]
    )


def test_a_factory_that_fails_is_told_without_a_traceback(running: Running) -> None:
    result = running(
        "def test_sync(syncguard_guard): pass",
        "--syncguard-engine=mine:make",
        mine="""
        def make(seed):
            raise RuntimeError("no memory")
        """,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "syncguard: engine 'mine:make' did not start",
            "  got: RuntimeError: no memory",
            "  what to do: mend its factory, whose parameters are any of checkpoint, model, *",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "plugin/sides.py" not in result.stdout.str()


def test_the_engine_is_started_once_and_closed_at_the_end(running: Running) -> None:
    result = running(
        """
        def test_one(syncguard_engine): pass
        def test_two(syncguard_engine): pass
        """,
        "--syncguard-engine=mine:make",
        "-s",
        mine="""
        from syncguard.stubs import make_stub_engine, make_stub_learner

        def make(seed):
            print("STARTED")
            engine = make_stub_engine()
            engine.close = lambda: print("CLOSED")
            return make_stub_learner(), engine
        """,
    )
    text = result.stdout.str()
    assert (text.count("STARTED"), text.count("CLOSED")) == (1, 1)
    assert text.index("STARTED") < text.index("..") < text.index("CLOSED")
