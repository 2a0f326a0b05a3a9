"""Many calls in threads."""

import threading

import pytest
import torch

from syncguard.parallel import each

MUCH = 1 << 30


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def threads_of(items: list[int], nbytes: int) -> set[int]:
    """Who makes the calls; each waits for a while for another one."""
    barrier = threading.Barrier(2)

    def call(_: int) -> int:
        try:
            barrier.wait(0.2)
        except threading.BrokenBarrierError:
            barrier.reset()
        return threading.get_ident()

    return set(each(call, items, nbytes))


def test_results_come_in_the_order_of_the_items() -> None:
    assert each(lambda item: item * item, list(range(100)), MUCH) == [n * n for n in range(100)]
    assert each(str, [], MUCH) == []


def test_much_is_read_by_several_threads_which_end() -> None:
    before = threading.active_count()
    assert len(threads_of(list(range(8)), MUCH)) == 2
    assert threading.active_count() == before


@pytest.mark.parametrize(("items", "nbytes"), [([1, 2], (16 << 20) - 1), ([1], MUCH)])
def test_little_is_read_here(items: list[int], nbytes: int) -> None:
    assert threads_of(items, nbytes) == {threading.get_ident()}


def test_an_error_is_raised() -> None:
    def call(item: int) -> int:
        return 1 // item

    with pytest.raises(ZeroDivisionError):
        each(call, [1, 0, 2], MUCH)
