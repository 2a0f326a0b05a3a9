"""Shared by the benchmarks: paired timings, and rows of what is measured against what is reached.

Machines are shared and clocks vary, so nothing is compared with a number from another time: each
round times the subject between two timings of what it is compared with, and the result is the
median of the rounds' ratios.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "COPIED",
    "QUICK",
    "Row",
    "Spread",
    "at_least",
    "at_most",
    "copy_bandwidth",
    "keep_freed_memory",
    "machine",
    "not_run",
    "noted",
    "ratios",
    "record",
    "rounds",
    "seconds",
    "share_of_copy",
    "use_all_cores",
]

QUICK: Final = os.environ.get("BENCH_QUICK", "") not in ("", "0")
"""Whether to measure less: few rounds, no model of 8 GB."""

COPIED: Final = 128 << 20
"""Bytes of the copy that bandwidths are compared with; far more than a cache holds."""

_RESULTS: Final = Path(__file__).parents[1] / "build" / "bench.json"
_GIGA: Final = 1e9


@dataclass(frozen=True, slots=True)
class Spread:
    """Median of several measurements, with the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize measurements."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the results.

    Attributes:
        name: What was measured.
        value: The median; none if it could not be measured.
        unit: Of the value.
        reach: The bound in words; empty if there is none.
        met: Whether the value keeps the bound; none if there is none.
    """

    name: str
    value: float | None
    unit: str
    reach: str = ""
    met: bool | None = None


def at_least(name: str, spread: Spread, unit: str, bound: float) -> Row:
    """Make a row whose value should reach a bound, and print it."""
    return _told(
        Row(name, spread.median, unit, f"at least {bound:g}", spread.median >= bound), spread
    )


def at_most(name: str, spread: Spread, unit: str, bound: float) -> Row:
    """Make a row whose value should stay below a bound, and print it."""
    return _told(
        Row(name, spread.median, unit, f"at most {bound:g}", spread.median <= bound), spread
    )


def noted(name: str, spread: Spread, unit: str) -> Row:
    """Make a row without a bound, and print it."""
    return _told(Row(name, spread.median, unit), spread)


def not_run(name: str, unit: str, reach: str, why: str) -> Row:
    """Make the row of what could not be measured, which does not count as met."""
    print(f"  {name}: not measured, {why}", flush=True)
    return Row(name, None, unit, reach, met=False)


def record(rows: Sequence[Row]) -> None:
    """Put rows into the results, in place of earlier ones of the same names."""
    held: list[dict[str, Any]] = []
    if _RESULTS.is_file():
        held = json.loads(_RESULTS.read_text())
    names = {row.name for row in rows}
    merged = [row for row in held if row["name"] not in names] + [asdict(row) for row in rows]
    _RESULTS.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=_RESULTS.parent, delete=False) as file:
        json.dump(merged, file, indent=1)
        file.write("\n")
    Path(file.name).replace(_RESULTS)


def rounds(usual: int) -> int:
    """How many rounds to measure."""
    return max(3, usual // 4) if QUICK else usual


def seconds(function: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def ratios(
    subject: Callable[[], object], other: Callable[[], object], count: int
) -> tuple[Spread, Spread]:
    """Compare two functions in alternation.

    Args:
        subject: What is measured.
        other: What it is compared with.
        count: Rounds.

    Returns:
        The other's time as a multiple of the subject's, and the subject's seconds.
    """
    subject()
    before = seconds(other)
    found, own = [], []
    for _ in range(count):
        own.append(seconds(subject))
        after = seconds(other)
        found.append((before + after) / 2 / own[-1])
        before = after
    return Spread.of(found), Spread.of(own)


class _Copy:
    def __init__(self) -> None:
        self.source = torch.zeros(COPIED, dtype=torch.uint8).random_(0, 256)
        self.target = torch.empty_like(self.source)

    def __call__(self) -> None:
        self.target.copy_(self.source)


def share_of_copy(function: Callable[[], object], traffic: int, count: int) -> Spread:
    """Compare the bytes a function reads and writes a second with those of `torch.copy_`.

    Args:
        function: What is measured.
        traffic: Bytes that it must read and write at least.
        count: Rounds.

    Returns:
        Its bandwidth as a share of the copy's, whose traffic is twice the bytes copied.
    """
    ratio, _ = ratios(function, _Copy(), count)
    scale = traffic / (2 * COPIED)
    return Spread(ratio.median * scale, ratio.low * scale, ratio.high * scale)


def copy_bandwidth(count: int) -> Row:
    """Measure `torch.copy_`, bytes read and written."""
    copy = _Copy()
    copy()
    spread = Spread.of([2 * COPIED / _GIGA / seconds(copy) for _ in range(count)])
    return noted("torch.copy_, read and written", spread, "GB/s")


def use_all_cores() -> None:
    """Let torch use the cores this process may run on, whatever the environment says."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, which it else returns, so that each use faults it in again.

    Code that allocates large temporaries is several times faster then; it gets its best case.
    """
    threshold, trim, gibibyte = -3, -1, 1 << 30
    allocator = ctypes.CDLL(None)
    allocator.mallopt(threshold, gibibyte)
    allocator.mallopt(trim, gibibyte)


def machine() -> str:
    """Describe the machine in a line, without naming it."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0))
    return (
        f"{model}, {cores} cores, {pages / 2**30:.0f} GiB, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )


def _told(row: Row, spread: Spread) -> Row:
    assert row.value is not None, "a measurement has a value"  # noqa: S101
    verdict = {True: "  reached", False: "  NOT REACHED", None: ""}[row.met]
    bound = f"  ({row.reach})" if row.reach else ""
    print(
        f"  {row.name}: {row.value:.3g} {row.unit}, quartiles {spread.low:.3g} to "
        f"{spread.high:.3g}{bound}{verdict}",
        flush=True,
    )
    return row
