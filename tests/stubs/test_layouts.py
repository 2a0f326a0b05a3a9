"""Row orders are permutations, and the cache can be wrong while the hardware cannot."""

import pytest
import torch

from syncguard.stubs import layouts
from syncguard.stubs.layouts import LAYOUTS, ROW_ORDERS, cached_order, inverse_order, true_order

_ROWS = (2, 8, 16, 20, 64)


@pytest.mark.parametrize("name", ROW_ORDERS)
@pytest.mark.parametrize("rows", _ROWS)
def test_orders_are_permutations(name: str, rows: int) -> None:
    order = true_order(name, rows)
    assert sorted(order.tolist()) == list(range(rows))
    assert torch.equal(order[inverse_order(name, rows)], torch.arange(rows))
    assert torch.equal(cached_order(name, rows), order)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("swap", [4, 5, 6, 7, 0, 1, 2, 3]),
        ("interleave", [0, 4, 1, 5, 2, 6, 3, 7]),
        ("shuffle", [0, 2, 4, 6, 1, 3, 5, 7]),
    ],
)
def test_orders(name: str, expected: list[int]) -> None:
    assert true_order(name, 8).tolist() == expected


def test_layouts_name_known_orders() -> None:
    assert {layout.rows for layout in LAYOUTS.values()} <= {"", *ROW_ORDERS}


def test_cache_is_bounded_and_can_be_emptied() -> None:
    try:
        for rows in range(2, 200, 2):
            cached_order("swap", rows)
        assert len(layouts._ORDERS) == 64
        assert cached_order("swap", 198) is cached_order("swap", 198)
    finally:
        layouts.forget_orders()
    assert not layouts._ORDERS
