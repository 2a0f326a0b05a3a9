"""``syncguard survey`` as a user runs it, over the cells of the short survey."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from syncguard.survey.findings import FINDINGS

pytestmark = pytest.mark.live

KNOWN = {
    "sglang/llama/mxfp8/session",
    "sglang/qwen3/mxfp8-trtllm/session+empty-session",
    "sglang/qwen3/mxfp8-trtllm/session+some-layers",
    "vllm/qwen3-tied/none/transfer",
    "vllm/qwen3-moe/none/transfer",
    "vllm/qwen3/modelopt-mxfp8/transfer+router-exclusion",
}


def test_core_passes_but_for_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "survey.json"
    words = [
        "survey",
        "--engine",
        "vllm",
        "--only",
        "core",
        "--json",
        str(path),
        "--html",
        str(tmp_path / "s.html"),
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "syncguard", *words],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    cells = {cell["name"]: cell for cell in json.loads(path.read_text())["cells"]}
    failing = {name for name, cell in cells.items() if cell["status"] == "fail"}
    assert failing == KNOWN & cells.keys() == KNOWN
    assert all(cells[name]["known"] for name in failing)
    passing = [cell for name, cell in cells.items() if name not in failing]
    assert {cell["status"] for cell in passing} == {"pass"}
    assert all(cell["peak_mib"] > 100 and cell["seconds"] > 0 for cell in cells.values())


@pytest.mark.slow
def test_a_script_finds_its_fault(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FINDINGS["vllm_bf16_experts"].script)
    ran = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    assert "largest change by a reload of the same weights" in ran.stdout
