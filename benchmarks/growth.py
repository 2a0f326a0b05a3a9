"""Cost of fingerprints and their comparison by model size: linear in bytes.

Models of 0.1, 1 and 8 GB, of more and more layers of a transformer: fused matrices of MXFP8
elements and scales, and norms. The parameters of both sides are views into two pools that are
larger than any cache, so that the largest model fits a small machine and every byte still comes
from memory. Measured is what a sync costs, the row prints of both sides and the rows that differ,
in processor time of all threads: other programs disturb it less than they do the clock's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from _measure import QUICK, Row, Spread, at_most, machine, noted, record, use_all_cores

from syncguard.checks.differences import differing_rows
from syncguard.fingerprint import row_prints
from syncguard.observations import WeightPrint

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIZES = (0.1, 1.0) if QUICK else (0.1, 1.0, 8.0)
_ROUNDS = 3 if QUICK else 7
_POOL = 512 << 20
_HIDDEN = 2048
_MATRICES = {"qkv": (3072, 2048), "o": (2048, 2048), "gate_up": (12288, 2048), "down": (2048, 6144)}

Model = dict[str, dict[str, torch.Tensor]]


def _model(pool: torch.Tensor, nbytes: float) -> Model:
    """Cut a model of about this size out of a pool, over and over."""
    place = 0

    def take(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        nonlocal place
        size = dtype.itemsize * torch.Size(shape).numel()
        if place + size > len(pool):
            place = 0
        place += size
        return pool[place - size : place].view(dtype).view(shape)

    def layers() -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        layer = 0
        while True:
            for name, (rows, columns) in _MATRICES.items():
                elements = take(torch.float8_e4m3fn, rows, columns)
                yield (
                    f"layers.{layer}.{name}",
                    {"elements": elements, "scales": take(torch.uint8, rows, columns // 32)},
                )
            yield f"layers.{layer}.norm", {"values": take(torch.bfloat16, _HIDDEN)}
            layer += 1

    model: Model = {}
    total = 0
    for name, tensors in layers():
        model[name] = tensors
        total = _nbytes(model) if name.endswith("norm") else total
        if total >= nbytes:
            return model
    raise AssertionError("layers do not end")


def _nbytes(model: Model) -> int:
    return sum(tensor.nbytes for tensors in model.values() for tensor in tensors.values())


def _prints(model: Model) -> dict[str, WeightPrint]:
    return {
        name: WeightPrint(
            name,
            "mxfp8",
            tuple(next(iter(tensors.values())).shape),
            {
                component: row_prints(tensor, granule=1 if component == "scales" else None)
                for component, tensor in tensors.items()
            },
            sum(tensor.nbytes for tensor in tensors.values()),
        )
        for name, tensors in model.items()
    }


def _check(learner: Model, engine: Model) -> None:
    mine, theirs = _prints(learner), _prints(engine)
    for name, held in mine.items():
        rows = differing_rows(held, theirs[name])
        if rows is None or rows.size:
            raise AssertionError(f"{name}: equal models differ")


def _rows() -> list[Row]:
    pool = torch.zeros(_POOL, dtype=torch.uint8).random_(0, 256)
    copied = pool.clone()
    models = {size: (_model(pool, size * 1e9), _model(copied, size * 1e9)) for size in _SIZES}
    costs: dict[float, list[float]] = {size: [] for size in _SIZES}
    for sides in models.values():
        _check(*sides)
    # Every size has the same share of the time, so that a busy moment meets them alike.
    for _ in range(_ROUNDS):
        for size, sides in models.items():
            repeats = max(1, round(min(2.0, max(_SIZES)) / size))
            started = time.process_time()
            for _ in range(repeats):
                _check(*sides)
            spent = (time.process_time() - started) / repeats
            costs[size].append(spent / _nbytes(sides[0]) * 1e12)
    rows = [
        noted(f"fingerprints of both sides compared, {size:g} GB", Spread.of(cost), "ms/GB")
        for size, cost in costs.items()
    ]
    spans = [max(turn) / min(turn) for turn in zip(*costs.values(), strict=True)]
    medians = [Spread.of(cost).median for cost in costs.values()]
    span = Spread(max(medians) / min(medians), min(spans), max(spans))
    name = f"growth, largest over smallest cost a byte, {_SIZES[0]:g} to {_SIZES[-1]:g} GB"
    return [*rows, at_most(name, span, "ratio", 1.15)]


if __name__ == "__main__":
    use_all_cores()
    print(f"  {machine()}")
    record(_rows())
