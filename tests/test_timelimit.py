"""A limit interrupts in time, nests, and leaves no trace."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from syncguard.timelimit import TimeLimitExceeded, time_limit

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarms here")

SOON = 0.03
LATER = 200.0


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    """Whatever a test does, the alarm and its handler are afterwards what they were."""
    handler, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    yield
    assert signal.getsignal(signal.SIGALRM) == handler
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert (left == 0) == (timer[0] == 0)
    assert interval == timer[1]


def spin(seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)


def test_work_within_the_limit_is_not_disturbed() -> None:
    with time_limit(LATER):
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= LATER


def test_work_beyond_the_limit_is_interrupted_and_told_so() -> None:
    started = time.monotonic()
    with pytest.raises(TimeLimitExceeded, match=r"^no answer within 0\.03 s$"), time_limit(SOON):
        spin()
    assert SOON <= time.monotonic() - started < 30


def test_work_that_handles_its_own_errors_is_interrupted_all_the_same() -> None:
    """An adapter that catches every Exception must not swallow the interruption."""

    def stubborn() -> str:
        try:
            spin()
        except Exception:  # noqa: BLE001 - that is the point
            return "went on"
        return "ended"

    with pytest.raises(TimeLimitExceeded), time_limit(SOON):
        stubborn()


@pytest.mark.parametrize("none", [0, -1, math.inf, math.nan])
def test_no_limit_sets_no_alarm(none: float) -> None:
    with time_limit(none):
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_an_error_of_the_work_passes_through() -> None:
    with pytest.raises(ValueError, match="own"), time_limit(LATER):
        raise ValueError("own")


def test_another_thread_runs_to_its_end() -> None:
    done: list[float] = []

    def work() -> None:
        with time_limit(SOON):
            spin(2 * SOON)
            done.append(signal.getitimer(signal.ITIMER_REAL)[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [0.0]


def test_a_platform_without_alarms_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(signal, "setitimer")
        with time_limit(SOON):
            spin(2 * SOON)


def test_an_inner_limit_that_ends_first_is_the_inner_ones() -> None:
    with time_limit(LATER):
        with pytest.raises(TimeLimitExceeded, match=r"within 0\.03 s"), time_limit(SOON):
            spin()
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= LATER


def test_an_outer_limit_that_ends_first_is_not_put_off_by_an_inner_one() -> None:
    started = time.monotonic()
    with (
        pytest.raises(TimeLimitExceeded, match=r"within 0\.03 s"),
        time_limit(SOON),
        time_limit(LATER),
    ):
        spin()
    assert time.monotonic() - started < 30


def test_an_inner_limit_takes_its_time_from_the_outer_one() -> None:
    with time_limit(LATER):
        with time_limit(LATER / 2):
            spin(0.05)
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= LATER - 0.05


def test_an_outer_limit_that_ends_with_the_inner_one_rings_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its remaining time is not rounded to a timer of zero, which would be none."""
    now = iter([0.0, 1000.0])

    def work() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: next(now))
            with time_limit(LATER / 2):
                pass
        spin()

    with pytest.raises(TimeLimitExceeded, match="within 200 s"), time_limit(LATER):
        work()


def test_an_alarm_of_others_is_put_back() -> None:
    rung: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, LATER, 7)
    try:
        with pytest.raises(TimeLimitExceeded), time_limit(SOON):
            spin()
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert LATER / 2 < left < LATER
        assert interval == 7
        signal.raise_signal(signal.SIGALRM)
        assert rung == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_an_alarm_of_others_that_ends_first_is_left_to_them() -> None:
    rung: list[int] = []
    previous = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    signal.setitimer(signal.ITIMER_REAL, SOON)
    try:
        with time_limit(LATER):
            spin(4 * SOON)
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_a_handler_that_cannot_be_set_again_becomes_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code that is not Python may have set one; Python then knows it as none."""
    given: list[Any] = []

    def set_handler(number: int, handler: Any) -> None:
        given.append(handler)

    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", set_handler)
        with time_limit(LATER):
            pass
    assert given[1] == signal.SIG_DFL
