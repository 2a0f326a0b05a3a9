"""C3 by another engine: synchronized equals started on the same weights."""

import pytest
import torch

from syncguard.checks.cold_warm import cold_warm
from syncguard.observations import ColdEngine, Unreadable
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import Answer, is_complete, low, parts_of, served

STATE = {"a": 1, "b": 2}
PROBE: dict[str, Answer] = {"q": served("q", low(4, 32)), "k": Unreadable("k", "no kernel")}


def test_an_equal_engine_passes() -> None:
    judgement = cold_warm(ColdEngine(STATE, PROBE), dict(STATE), PROBE)
    assert judgement.status is Status.PASS
    assert judgement.message == (
        "2 tensors and 1 serving path are those of an engine that loaded the same weights"
    )
    assert judgement.coverage == Coverage(2, 2)
    assert (judgement.measured, judgement.bound) == (0, 0)
    two = {"q": PROBE["q"], "o": PROBE["q"]}
    told = cold_warm(ColdEngine({"a": 1}, two), {"a": 1}, two).message
    assert told.startswith("1 tensor and 2 serving paths are those of ")


@pytest.mark.parametrize(
    ("cold", "warm", "told"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ("b", "holds other bytes")),
        (
            {"a": 1, "b": 2},
            {"a": 1},
            ("b", "exists only in the engine that was started on the weights"),
        ),
        ({"a": 1}, {"a": 1, "b": 2}, ("b", "exists only in the synchronized engine")),
    ],
)
def test_a_tensor_that_differs_is_named(
    cold: dict[str, int], warm: dict[str, int], told: tuple[str, str]
) -> None:
    judgement = cold_warm(ColdEngine(cold, {}), warm, {})
    assert (judgement.status, judgement.subject) == (Status.FAIL, "b")
    assert judgement.evidence == (told,)
    assert (judgement.measured, judgement.bound) == (1, 0)
    assert judgement.coverage == Coverage(len(warm), 2)
    parts = parts_of(judgement)
    assert parts["what"] == "1 part differs from an engine that loaded the same weights"
    assert parts["where"] == "b"
    assert parts["got"] == ": ".join(told)
    assert is_complete(judgement)


def test_a_kernel_that_serves_other_rows_is_named() -> None:
    other = low(4, 32)
    other["elements"].view(torch.uint8)[1, 3] ^= 0x80
    judgement = cold_warm(ColdEngine(STATE, PROBE), STATE, {"q": served("q", other)})
    assert judgement.evidence == (("q", "its kernel serves 1 other row"),)
    judgement = cold_warm(ColdEngine(STATE, PROBE), STATE, {"q": served("q", low(4, 32, seed=1))})
    assert judgement.evidence == (("q", "its kernel serves 4 other rows"),)
    judgement = cold_warm(ColdEngine(STATE, PROBE), STATE, {"q": served("q", low(8, 32))})
    assert judgement.evidence == (("q", "its kernel serves 8 rows instead of 4"),)


@pytest.mark.parametrize("warm", [{}, {"q": Unreadable("q", "gone")}])
def test_a_kernel_that_cannot_be_asked_any_more_is_named(
    warm: dict[str, Answer],
) -> None:
    judgement = cold_warm(ColdEngine(STATE, PROBE), STATE, warm)
    told = "its kernel could be asked in the engine that was started on the weights only"
    assert judgement.evidence == (("q", told),)


def test_all_that_differs_is_counted() -> None:
    judgement = cold_warm(ColdEngine({"b": 1, "a": 1}, PROBE), {"a": 2, "b": 2}, {})
    assert [name for name, _ in judgement.evidence] == ["a", "b", "q"]
    assert parts_of(judgement)["what"].startswith("3 parts differ from ")


def test_no_other_engine_is_not_applicable() -> None:
    judgement = cold_warm(None, STATE, PROBE)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.NOT_APPLICABLE)
    assert judgement.message == "no engine was started cold to compare with"


@pytest.mark.parametrize(("cold", "warm"), [({}, STATE), (STATE, {})])
def test_an_engine_without_tensors_is_missing_input(
    cold: dict[str, int], warm: dict[str, int]
) -> None:
    judgement = cold_warm(ColdEngine(cold, {}), warm, {})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "an engine reported no tensors"
