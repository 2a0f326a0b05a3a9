import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncguard.reporting import numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.0, "0"),
        (65536.0, "65536"),
        (2_000_000.0, "2e+06"),
        (0.02684, "0.0268"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_real(value: float | None, shown: str) -> None:
    assert numbers.real(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.004, "0.00 s"), (0.25, "0.25 s"), (2.34, "2.3 s"), (75.2, "75 s")]
)
def test_seconds(value: float, shown: str) -> None:
    assert numbers.seconds(value) == shown


@pytest.mark.parametrize(
    ("checked", "total", "shown"),
    [
        (0, 0, "0/0 B"),
        (999, 999, "999/999 B"),
        (1_240, 1_240, "1.24/1.24 kB"),
        (589_824, 589_824, "590/590 kB"),
        (134_400_000, 134_500_000, "<134/134 MB"),
        (100_000, 134_500_000, "0/134 MB"),
        (12_000_000, 13_449_999, "12.0/13.4 MB"),
    ],
)
def test_bytes(checked: int, total: int, shown: str) -> None:
    assert numbers.bytes_of(checked, total) == shown


@given(st.integers(1, 10**16), st.data())
def test_incomplete_coverage_never_looks_complete(total: int, data: st.DataObject) -> None:
    checked = data.draw(st.integers(0, total))
    part, _, whole = numbers.bytes_of(checked, total).partition("/")
    assert (part == whole.partition(" ")[0]) == (checked == total)
