"""How often each probe of a kernel sees a wrong weight, against the share of bytes that are wrong.

The weight takes a small step and the kernel keeps the old one (all of it, or only its scales), or
the lowest bits of a few elements are wrong. Five instruments judge the kernel's output: on
Gaussian rows a relative Frobenius error of 0.25, the same error over the mean of healthy kernels
by 4 standard deviations, and the rounding bound of each output; block rows of +-1; and rows of the
identity. Writes ``docs/probe-power.json``, and ``docs/probe-power.svg`` if matplotlib is installed.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from syncguard.grids import dequantize, quantize
from syncguard.probes import block_rows, random_rows

SIZE = 512
ROWS = 16
TRIALS = 5 if os.environ.get("BENCH_QUICK") else 20
STEPS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
FLIPS = (1, 3, 10, 30, 100, 1000)
FAULTS = ("all stale", "scales stale", "low bits wrong")

Judge = Callable[[torch.Tensor, torch.Tensor], bool]


def served(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A healthy W8A8 kernel: float32 accumulation, bf16 output."""
    used = dequantize(*quantize(rows), dtype=torch.float32)
    return (used @ weight.float().T).bfloat16()


def error(wanted: torch.Tensor, held: torch.Tensor, seed: int = 0) -> float:
    """Relative Frobenius error of a kernel on Gaussian rows, against unrounded activations."""
    rows = random_rows(ROWS, SIZE, seed, torch.bfloat16)
    plain = rows.float() @ wanted.float().T
    return float((served(held, rows).float() - plain).norm() / plain.norm())


def published(wanted: torch.Tensor, held: torch.Tensor) -> bool:
    return error(wanted, held) > 0.25


def surveyed(wanted: torch.Tensor, held: torch.Tensor) -> bool:
    healthy = torch.tensor([error(wanted, wanted, seed) for seed in range(1, 9)])
    return error(wanted, held) > float(healthy.mean() + 4 * healthy.std())


def calibrated(wanted: torch.Tensor, held: torch.Tensor) -> bool:
    rows = random_rows(ROWS, SIZE, 0, torch.bfloat16)
    used = dequantize(*quantize(rows), dtype=torch.float32)
    emulated = used @ wanted.float().T
    slack = used.abs() @ wanted.float().abs().T
    bound = 2.0**-8 * emulated.abs() + 2 * SIZE * 2.0**-24 * slack
    return bool(((served(held, rows).float() - emulated).abs() > bound).any())


def exactly(rows: torch.Tensor) -> Judge:
    def differs(wanted: torch.Tensor, held: torch.Tensor) -> bool:
        return not torch.equal(served(wanted, rows), served(held, rows))

    return differs


PROBES: dict[str, Judge] = {
    "random, relative error 0.25": published,
    "random, mean + 4 sd": surveyed,
    "random, rounding bound": calibrated,
    "block rows of +-1": exactly(block_rows(SIZE, 0, torch.bfloat16)),
    "identity rows": exactly(torch.eye(SIZE, dtype=torch.bfloat16)),
}


def trial(step: float, seed: int) -> tuple[float, dict[str, dict[str, bool]]]:
    """Share of changed bytes, and per fault which probe saw it."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(SIZE, SIZE, generator=generator).mul(0.02)
    new = old + 0.02 * step * (torch.randint(0, 2, old.shape, generator=generator) * 2 - 1)
    (e0, s0), (e1, s1) = quantize(old.bfloat16()), quantize(new.bfloat16())
    changed = (e0.view(torch.uint8) != e1.view(torch.uint8)).float().mean().item()
    wanted = dequantize(e1, s1)
    held = {"all stale": dequantize(e0, s0), "scales stale": dequantize(e1, s0)}
    seen: dict[str, dict[str, bool]] = {}
    for fault, weight in held.items():
        if torch.equal(weight, wanted):
            continue  # nothing is stale: there is nothing to see
        seen[fault] = {name: judge(wanted, weight) for name, judge in PROBES.items()}
    return changed, seen


def flipped(count: int, seed: int) -> tuple[float, dict[str, dict[str, bool]]]:
    """The same for a weight in which the lowest bit of some elements is wrong."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(SIZE, SIZE, generator=generator).mul(0.02).bfloat16()
    elements, scales = quantize(weight)
    wanted = dequantize(elements, scales)
    wrong = elements.clone()
    where = torch.randperm(wrong.numel(), generator=generator)[:count]
    wrong.view(torch.uint8).view(-1)[where] ^= 1
    held = dequantize(wrong, scales)
    seen = {name: judge(wanted, held) for name, judge in PROBES.items()}
    return count / wrong.numel(), {"low bits wrong": seen}


def main() -> None:
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for count in FLIPS:
        tell(rows, "low bits wrong", count, [flipped(count, seed) for seed in range(TRIALS)])
    for step in STEPS:
        found = [trial(step, seed) for seed in range(TRIALS)]
        for fault in FAULTS[:2]:
            tell(rows, fault, step, found)
    if os.environ.get("BENCH_QUICK"):
        return
    docs = Path(__file__).parents[1] / "docs"
    docs.mkdir(exist_ok=True)
    (docs / "probe-power.json").write_text(json.dumps(rows, indent=1) + "\n")
    draw(rows, docs / "probe-power.svg")


def tell(rows: list[dict[str, Any]], fault: str, size: float, found: list[Any]) -> None:
    share = sum(changed for changed, _ in found) / len(found)
    cells = [seen[fault] for _, seen in found if fault in seen]
    rates = {name: sum(c[name] for c in cells) / len(cells) for name in PROBES if cells}
    rows.append({"fault": fault, "size": size, "share": share, "trials": len(cells)} | rates)
    told = "  ".join(f"{name} {rate:4.0%}" for name, rate in rates.items())
    print(f"{fault:<14} changed {share:8.4%} of {len(cells):2d}: {told}")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    try:
        from matplotlib import pyplot, rcParams
    except ImportError:
        print("no plot: pip install matplotlib", file=sys.stderr)
        return
    rcParams["svg.hashsalt"] = "syncguard"
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True)
    for axis, fault in zip(axes, FAULTS, strict=True):
        for name, marker in zip(PROBES, "xvos^", strict=True):
            mine = [row for row in rows if row["fault"] == fault and row["trials"]]
            shares = [row["share"] for row in mine]
            axis.plot(shares, [row[name] for row in mine], marker=marker, label=name, alpha=0.8)
        axis.set(xscale="log", title=fault, xlabel="share of element bytes that changed")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("detection rate")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
