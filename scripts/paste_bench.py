"""Put the results of `make bench` into docs/performance.md, between its markers.

Usage: python scripts/paste_bench.py [build/bench.json]
"""

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _blocks import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"


def main() -> int:
    """Replace the block; 0 if it was there."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "bench.json"
    rows = json.loads(source.read_text("utf-8"))
    return fill(PAGE, "bench", _block(rows))


def _block(rows: list[dict[str, Any]]) -> str:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from _measure import machine

    load = os.getloadavg()[0]
    lines = [
        f"{machine()}; {datetime.now(UTC):%Y-%m-%d}, a load of {load:.1f} at the end.",
        "",
        "| what | measured | reach | |",
        "|---|---|---|---|",
    ]
    for row in rows:
        value = "not measured" if row["value"] is None else f"{row['value']:.3g} {row['unit']}"
        met = {True: "reached", False: "**not reached**", None: ""}[row["met"]]
        lines.append(f"| {row['name']} | {value} | {row['reach']} | {met} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
