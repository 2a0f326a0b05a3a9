"""Observations: made once, kept with their failures, and complete where a sample is not enough."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from syncguard import observing
from syncguard.checks.differences import Difference
from syncguard.errors import Unsupported
from syncguard.fingerprint import value_print
from syncguard.observations import EngineLayer, GraphReads, ProbeTurn, SyncRecord
from syncguard.observing import View
from syncguard.rotation import Turns
from syncguard.timelimit import TimeLimitExceeded
from tests.checks.factories import Model, low, plain, printed
from tests.checks.fakes import FakeEngine, FakeLearner
from tests.observed import a_view, synced


def test_each_observation_is_made_once() -> None:
    learner, _, view = synced()
    assert view.made("learner_prints") is None
    first = view.get("learner_prints")
    assert view.get("learner_prints") is first
    assert view.made("learner_prints") is first
    assert learner.calls.count("prints") == 1


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), TimeLimitExceeded("late")])
def test_a_failure_is_kept_and_raised_again(error: BaseException) -> None:
    learner, _, view = synced()
    learner.failing["prints"] = error
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            view.get("learner_prints")
        assert caught.value is error
    assert learner.calls.count("prints") == 1
    assert view.made("learner_prints") is None


def test_a_stop_by_the_user_is_no_failure_of_the_observation() -> None:
    learner, _, view = synced()
    learner.failing["prints"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        view.get("learner_prints")
    del learner.failing["prints"]
    assert view.get("learner_prints")


def test_a_failure_of_one_observation_is_one_of_those_made_from_it() -> None:
    learner, engine, view = synced()
    learner.failing["prints"] = Unsupported("this learner cannot")
    for name in ("differences", "learner_prints"):
        with pytest.raises(Unsupported, match="this learner cannot"):
            view.get(name)
    assert "weight_prints" not in engine.calls


def test_a_failure_before_the_sync_is_that_of_the_observation() -> None:
    error = Unsupported("no graph here")
    view = a_view(failures={"graph_reads": error})
    with pytest.raises(Unsupported, match="no graph here"):
        view.get("graph_reads")


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        a_view().get("nonsense")


def test_time_is_counted_once_where_one_observation_needs_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]

    def outer(view: View) -> int:
        now[0] += 2
        return int(view.get("inner"))

    def inner(_: View) -> int:
        now[0] += 3
        return 1

    def broken(_: View) -> int:
        now[0] += 4
        raise ValueError

    monkeypatch.setattr(observing, "OBSERVERS", {"outer": outer, "inner": inner, "broken": broken})
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    view = a_view()
    assert view.seconds == 0
    view.get("outer")
    assert view.seconds == 5
    view.get("inner")
    assert view.seconds == 5
    for _ in range(2):
        with contextlib.suppress(ValueError):
            view.get("broken")
        assert view.seconds == 9


def test_the_context_answers_for_what_was_noted() -> None:
    state, layers = {"q": 1}, (EngineLayer("q", (), "", "", "", ""),)
    view = a_view(
        same_weights=True,
        state_before=state,
        layers_before=layers,
        value_history={"version 1": {}},
        exported=state,
        preserved_before=state,
        learner_before=state,
    )
    answers = {
        "storage_before": ("before",),
        "graph_reads": GraphReads(frozenset({"q"}), captured=True),
        "same_weights": True,
        "state_before": state,
        "engine_layers_before": layers,
        "value_history": {"version 1": {}},
        "exported": state,
        "preserved_before": state,
        "learner_state_before": state,
        "poisoned": None,
        "sync_record": SyncRecord(1, "1"),
        "first_sync": True,
    }
    assert {name: view.get(name) for name in answers} == answers
    assert a_view(record=SyncRecord(2, "2")).get("first_sync") is False


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("engine_layers", "layers"),
        ("exact_probe", "probe_exact"),
        ("rederived", "rederive"),
        ("storage", "storage"),
        ("weight_prints", "weight_prints"),
    ],
)
def test_the_engine_answers_for_itself(name: str, call: str) -> None:
    _, engine, view = synced()
    assert len(view.get(name)) > 0
    assert engine.calls[-1] == call


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("learner_layers", "learner.layers"),
        ("learner_prints", "prints"),
        ("learner_values", "value_prints"),
    ],
)
def test_the_learner_answers_for_itself(name: str, call: str) -> None:
    learner, _, view = synced()
    assert len(view.get(name)) > 0
    assert learner.calls[-1] == call


def test_the_state_is_taken_only_where_it_is_compared() -> None:
    _, engine, view = synced()
    assert view.get("state") == {}
    assert "state" not in engine.calls
    _, engine, view = synced(same_weights=True)
    assert view.get("state") == engine.state()


def test_what_an_adapter_does_not_offer_is_none() -> None:
    _, _, view = synced()
    names = (
        "admits", "cached_versions", "preserved", "served_requests", "learner_state",
        "checkpoint_state", "version_at_use", "canary_engine", "canary_learner",
    )  # fmt: skip
    assert [view.get(name) for name in names] == [None] * len(names)


def test_the_manifest_tells_under_which_names_weights_travel() -> None:
    learner, _, view = synced()

    def wire_names(weight: str) -> tuple[str, ...]:
        return {"q.weight": ("q.weight", "q.weight_scale"), "head.weight": ()}.get(
            weight, (weight,)
        )

    learner.wire_names = wire_names  # type: ignore[method-assign]
    assert view.get("manifest") == {
        "embed.weight": "embed.weight",
        "q.weight": "q.weight",
        "q.weight_scale": "q.weight",
        "norm": "norm",
    }


class TestDifferences:
    """Rows are fetched until it is certain what kind of difference there is."""

    def found(self, engine: FakeEngine, view: View) -> dict[str, Difference]:
        return {each.weight: each for each in view.get("differences")}

    def test_equal_weights_have_none_and_fetch_nothing(self) -> None:
        _, engine, view = synced()
        assert view.get("differences") == []
        assert engine.fetched == []

    def test_a_difference_carries_its_rows_of_both_sides(self) -> None:
        learner, engine, view = synced()
        engine.held["q.weight"]["elements"].view(torch.uint8)[[2, 5], 3] ^= 0x80
        (found,) = view.get("differences")
        assert (found.weight, found.rows.tolist(), found.total) == ("q.weight", [2, 5], 8)
        assert found.sampled == (2, 5)
        assert engine.fetched == [("q.weight", [2, 5])]
        mine = learner.grid_tensors("q.weight")
        for component in ("elements", "scales"):
            rows = mine[component][[2, 5]].view(torch.uint8)
            assert torch.equal(found.learner[component].view(torch.uint8), rows)
            rows = engine.held["q.weight"][component][[2, 5]].view(torch.uint8)
            assert torch.equal(found.engine[component].view(torch.uint8), rows)

    def test_a_vector_is_fetched_whole(self) -> None:
        learner, engine, view = synced()
        engine.held["norm"]["values"][3] += 1
        (found,) = view.get("differences")
        assert engine.fetched == [("norm", [])]
        assert (found.rows.tolist(), found.total, found.sampled) == ([0], 1, (0,))
        assert torch.equal(found.learner["values"], learner.model["norm"])

    def test_at_most_eight_rows_are_fetched_of_a_plain_difference(self) -> None:
        _, engine, view = synced()
        engine.held["embed.weight"]["values"].add_(1)
        (found,) = view.get("differences")
        assert found.rows.size == 12
        assert engine.fetched == [("embed.weight", list(range(8)))]

    def test_rows_are_fetched_on_while_only_the_encoding_differs(self) -> None:
        model = Model({"q": {"values": torch.zeros(3000, 8)}})
        model.engine["q"] = {"values": -torch.zeros(3000, 8)}
        (found,) = model.differences()
        assert found.sampled == tuple(range(8))
        assert not found.values_differ
        model.engine["q"]["values"][2999, 3] = 1
        (found,) = model.differences()
        assert found.sampled[0] == 2999
        assert found.values_differ
        assert len(found.sampled) == 8

    def test_the_origin_of_the_worst_row_is_looked_for(self) -> None:
        stale = low(8, 64, seed=5)
        model = Model(
            {"q": low(8, 64), "k": low(8, 64, seed=1)}, versions={"version 1": {"q": stale}}
        )
        for component in stale:
            model.engine["q"][component][3] = stale[component][3]
            model.engine["q"][component][4] = model.weights["k"][component][6]
        (found,) = model.differences()
        assert found.origin == "row 3 of the learner's q, version 1"
        model.engine["q"]["elements"][3] = model.weights["q"]["elements"][3]
        model.engine["q"]["scales"][3] = model.weights["q"]["scales"][3]
        (found,) = model.differences()
        assert found.origin == "row 6 of the learner's k, this version"

    def test_rows_of_more_dimensions_are_counted_as_in_prints(self) -> None:
        """Fused experts: rows are those of all experts, one after the other."""
        model = Model({"w13": plain(3, 4, 8)})
        model.engine["w13"]["values"][2, 1, 5] += 1
        flat = model.engine["w13"]["values"].reshape(12, 8)
        model.engine["w13"] = {"values": flat}
        view = model.view()
        fused = replace(printed("w13", {"values": flat}), shape=(3, 4, 8))
        view._made["weight_prints"] = {"w13": fused}
        (found,) = view.get("differences")
        assert (found.rows.tolist(), found.total) == ([9], 12)
        assert torch.equal(found.learner["values"], model.weights["w13"]["values"][2, 1][None])

    @pytest.mark.parametrize("error", [Unsupported("no rows"), KeyError("q")])
    def test_rows_that_cannot_be_fetched_lose_no_difference(self, error: Exception) -> None:
        _, engine, view = synced()
        engine.failing["fetch_rows"] = error
        engine.held["q.weight"]["elements"].view(torch.uint8)[2, 3] ^= 0x80
        (found,) = view.get("differences")
        assert (found.weight, found.engine, found.rows.tolist()) == ("q.weight", {}, [2])
        assert found.values_differ

    def test_a_time_limit_ends_a_fetch(self) -> None:
        _, engine, view = synced()
        engine.failing["fetch_rows"] = TimeLimitExceeded("late")
        engine.held["q.weight"]["elements"].view(torch.uint8)[2, 3] ^= 0x80
        with pytest.raises(TimeLimitExceeded):
            view.get("differences")

    def test_a_copy_that_equals_the_first_is_the_same_difference(self) -> None:
        model = Model({"q": low()})
        model.change("q", "elements", (2, 3), 0x80)
        model.engine["q@rank1"] = {n: t.clone() for n, t in model.engine["q"].items()}
        first, copy = model.differences()
        assert (first.weight, copy.weight) == ("q", "q@rank1")
        assert copy.engine is first.engine
        model.change("q@rank1", "elements", (5, 3), 0x80)
        first, copy = model.differences()
        assert copy.engine == {}
        assert copy.rows.tolist() == [2, 5]

    def test_a_copy_whose_first_is_right_is_a_difference_of_its_own(self) -> None:
        model = Model({"q": low()}, engine={"q@rank1": low(seed=1)})
        (found,) = model.differences()
        assert (found.weight, found.engine) == ("q@rank1", {})

    def test_what_cannot_be_compared_is_no_difference(self) -> None:
        model = Model({"q": low(), "k": low(seed=1)}, engine={"mtp": low(seed=3)})
        model.engine["q"] = plain(8, 64)
        model.hidden["k"] = "packed"
        assert model.differences() == []


class TestRandomProbe:
    def test_a_healthy_kernel_is_within_its_bound(self) -> None:
        _, _, view = synced()
        answers = {each.module: each for each in view.get("random_probe")}
        assert list(answers) == ["q", "head"]
        assert answers["q"].parts == ("q.weight",)
        assert 0 < answers["q"].worst <= 1
        assert answers["q"].nbytes == printed("q", FakeLearner().grid_tensors("q.weight")).nbytes
        # Rounded activations cost some percent, plain ones nothing but the output's rounding.
        assert 0.01 < answers["q"].error < 0.06
        assert answers["q"].healthy == pytest.approx(answers["q"].error, abs=0.005)
        assert answers["head"].healthy == 0
        assert answers["head"].error < 0.005

    @pytest.mark.parametrize("name", ["q", "head"])
    def test_one_wrong_weight_is_beyond_its_bound(self, name: str) -> None:
        _, engine, view = synced()
        held = {k: t.clone() for k, t in engine.held[f"{name}.weight"].items()}
        component = next(iter(held))
        held[component].view(torch.uint8)[3, -1] ^= 0x80
        engine.kernels[f"{name}.weight"] = held
        answers = {each.module: each for each in view.get("random_probe")}
        assert answers[name].worst > 1

    def test_an_output_of_nan_is_the_worst_of_all(self) -> None:
        _, engine, view = synced()
        held = {"values": engine.held["head.weight"]["values"].clone()}
        held["values"][3, 1] = torch.nan
        engine.kernels["head.weight"] = held
        answers = {each.module: each for each in view.get("random_probe")}
        assert np.isnan(answers["head"].worst)

    def test_a_layer_of_zeros_has_no_error(self) -> None:
        learner, engine, view = synced()
        learner.model["head.weight"].zero_()
        engine.held["head.weight"]["values"].zero_()
        answers = {each.module: each for each in view.get("random_probe")}
        assert (answers["head"].worst, answers["head"].error, answers["head"].healthy) == (0, 0, 0)

    def test_the_same_rows_are_asked_for_at_both_ends(self) -> None:
        _, engine, view = synced()
        given: list[tuple[int, int]] = []
        original = engine.probe_random

        def probe_random(rows: int, seed: int) -> Any:
            given.append((rows, seed))
            return original(rows, seed)

        engine.probe_random = probe_random  # type: ignore[method-assign]
        view.get("random_probe")
        assert given == [(16, 3)]


class TestBlockProbe:
    def test_without_turns_nothing_is_probed(self) -> None:
        _, engine, view = synced()
        assert view.get("rotation") is None
        assert view.get("block_probe") == []
        assert "probe_blocks" not in engine.calls

    def test_layers_take_turns_but_for_those_that_are_looked_up(self) -> None:
        turns = Turns(1)
        chosen = []
        for _ in range(3):
            _, _, view = synced(turns=turns)
            chosen.append(view.get("rotation").chosen)
            (answer,) = view.get("block_probe")
            assert [answer.module] == list(chosen[-1])
            assert (answer.wrong, answer.where) == (0, "")
        assert chosen == [{"q": 0}, {"head": 0}, {"q": 1}]

    @pytest.mark.parametrize("name", ["q", "head"])
    @pytest.mark.parametrize("value", [7.0, torch.nan, torch.inf])
    def test_a_wrong_sum_is_placed(self, name: str, value: float) -> None:
        _, engine, view = synced(turns=Turns(2))
        answer = engine._answer

        def wrong(weight: str, rows: torch.Tensor, rounds: bool = False) -> Any:
            given = answer(weight, rows, rounds)
            if given.module == name:
                given.output[0, 3] = value
            return given

        engine._answer = wrong  # type: ignore[method-assign, assignment]
        answers = {each.module: each for each in view.get("block_probe")}
        assert (answers[name].wrong, answers[name].where) == (1, "row 3, block 0")
        assert sum(each.wrong for each in answers.values()) == 1

    def test_low_precision_layers_give_sums_and_others_one_element_of_each_block(self) -> None:
        turns = Turns(2)
        for turn in range(3):
            _, engine, view = synced(turns=turns)
            asked: list[Mapping[str, ProbeTurn]] = []
            engine.probe_blocks = asked.append  # type: ignore[method-assign, assignment]
            with contextlib.suppress(TypeError):  # it answers nothing
                view.get("block_probe")
            assert asked == [{"q": ProbeTurn(True, 3), "head": ProbeTurn(False, turn)}]


class TestFlushedValues:
    def test_only_weights_that_are_served_otherwise_are_looked_at(self) -> None:
        learner, _, view = synced()
        assert view.get("flushed_values") == {}
        held = learner.dequantized("head.weight")
        held[3, 0] = 2.0**-130
        learner.dequantized = lambda weight: held  # type: ignore[method-assign]
        learner.value_prints = lambda: {"head.weight": value_print(held)}  # type: ignore[method-assign]
        again = View(learner, view.engine, view.context)
        assert again.get("flushed_values").keys() == {"head.weight"}
        flushed = again.get("flushed_values")["head.weight"]
        assert np.flatnonzero(flushed != value_print(held)).tolist() == [3]


class TestPacked:
    @pytest.mark.parametrize(
        ("change", "packed"),
        [
            (lambda model: None, False),
            (lambda model: model.hidden.update(q="packed"), True),
            (lambda model: model.engine.update(q=plain(8, 64)), True),
            (lambda model: model.engine.update(mtp=low(seed=3)), False),
            (lambda model: model.change("q", "elements", (0, 0)), False),
        ],
    )
    def test_kernels_are_asked_where_bytes_cannot_be_compared(
        self, change: Callable[[Model], object], packed: bool
    ) -> None:
        model = Model({"q": low(), "k": low(seed=1)})
        change(model)
        view = model.view()
        view._made |= {"exact_probe": {"q": 1}, "learner_values": {"q": 2}}
        assert view.get("packed_probe") == ({"q": 1} if packed else {})
        assert view.get("packed_values") == ({"q": 2} if packed else {})


class TestColdEngine:
    def test_none_is_started_unless_it_is_asked_for(self) -> None:
        _, engine, view = synced()
        assert view.get("cold_engine") is None
        assert view.get("warm_state") == {}
        assert "state" not in engine.calls

    def test_one_is_asked_and_closed(self) -> None:
        cold = FakeEngine()
        _, engine, view = synced(start_cold=lambda: cold)
        found = view.get("cold_engine")
        assert found.state == cold.state()
        assert found.probe.keys() == cold.probe_exact().keys()
        assert cold.closed
        assert view.get("warm_state") == engine.state()

    def test_one_that_fails_is_closed_too(self) -> None:
        cold = FakeEngine()
        cold.failing["probe_exact"] = ValueError("x")
        _, _, view = synced(start_cold=lambda: cold)
        with pytest.raises(ValueError, match="x"):
            view.get("cold_engine")
        assert cold.closed


class TestAfterUse:
    def test_weights_are_looked_at_after_requests(self) -> None:
        _, engine, view = synced()
        assert view.get("prints_at_use").keys() == engine.held.keys()
        assert engine.calls.index("generate") < engine.calls.index("weight_prints")

    def test_a_request_that_fails_hides_nothing(self) -> None:
        _, engine, view = synced()
        engine.failing["generate"] = ValueError("no answer")
        assert view.get("prints_at_use")

    def test_after_a_failed_sync_nothing_is_asked(self) -> None:
        _, engine, view = synced()
        view.context.record.error = "x"
        assert view.get("prints_at_use") is None
        assert "generate" not in engine.calls
