"""Scenarios of a survey, on the stub: what is done to a sync is done, and what fails is named."""

from collections.abc import Sequence
from typing import Any

import pytest

from syncguard.errors import Unsupported
from syncguard.report import Report
from syncguard.sides import make_engine
from syncguard.survey import SurveyCell
from syncguard.survey import scenarios as module
from syncguard.survey.scenarios import SCENARIOS
from syncguard.verdict import Status

PAIR = SurveyCell("stub", "stub-replicas", "mxfp8", "")
ONE = SurveyCell("stub", "stub-dense", "mxfp8", "")


def failing(report: Report) -> dict[str, list[str]]:
    """Violated condition to what verdicts name."""
    found: dict[str, list[str]] = {}
    for verdict in report.verdicts:
        if verdict.status is Status.FAIL:
            names = [verdict.subject, *(name for name, _ in verdict.evidence)]
            found.setdefault(verdict.condition, []).extend(names)
    return found


def test_a_replica_that_is_left_out_fails_and_is_named() -> None:
    found = failing(SCENARIOS["replica-left-out"](PAIR))
    assert {"C2", "C5", "C7"} <= found.keys()
    assert found["C2"]
    assert all(name.endswith("@rank1") for name in found["C2"])
    assert "rank 1" in found["C7"]


def test_nobody_can_be_left_out_of_one() -> None:
    with pytest.raises(RuntimeError, match="there are no replicas"):
        SCENARIOS["replica-left-out"](ONE)


class Watched:
    """An engine that notes in which order it is asked to sleep and to sync.

    Like vLLM on a CPU it frees nothing; unless it keeps weights aside, and puts them back.
    """

    def __init__(self, engine: Any, calls: list[str], level: int = 0) -> None:
        self._engine, self._calls, self._level = engine, calls, level

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        if name not in ("sleep", "wake", "begin", "finish", "generate"):
            return value

        def noted(*arguments: Any, **options: Any) -> Any:
            self._calls.append(name)
            if name not in ("sleep", "wake"):
                return value(*arguments, **options)
            if self._level:
                value(*(self._level for _ in arguments))
            return None

        return noted


def test_a_sync_comes_while_the_engine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    made = make_engine

    def watched(*arguments: Any) -> Any:
        return Watched(made(*arguments), calls)

    monkeypatch.setattr(module, "make_engine", watched)
    report = SCENARIOS["asleep"](ONE)
    assert failing(report) == {}
    at = _last(calls, "sleep")
    assert calls[at : at + 4] == ["sleep", "begin", "finish", "wake"]
    assert "generate" in calls[at + 4 :]  # it is judged when it is awake


def test_weights_of_before_the_sleep_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_engine
    monkeypatch.setattr(module, "make_engine", lambda *given: Watched(made(*given), [], level=1))
    assert {"C2", "C3"} <= failing(SCENARIOS["asleep"](ONE)).keys()


def test_an_engine_that_cannot_sleep_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sleepless(Watched):
        name = "stub"

        def __getattr__(self, name: str) -> Any:
            if name == "sleep":
                raise AttributeError(name)
            return super().__getattr__(name)

    made = make_engine
    monkeypatch.setattr(module, "make_engine", lambda *given: Sleepless(made(*given), []))
    with pytest.raises(Unsupported, match="stub has no 'sleep'"):
        SCENARIOS["asleep"](ONE)


def _last(calls: Sequence[str], name: str) -> int:
    return len(calls) - 1 - list(reversed(calls)).index(name)
