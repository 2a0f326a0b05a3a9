"""``syncguard survey`` as a user runs it, over the cells of the short survey."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from syncguard.survey.findings import FINDINGS

pytestmark = pytest.mark.live

KNOWN = {
    "sglang": {
        "sglang/llama/mxfp8/session",
        "sglang/qwen3/mxfp8-trtllm/session+empty-session",
        "sglang/qwen3/mxfp8-trtllm/session+some-layers",
    },
    "vllm": {
        "vllm/qwen3-tied/none/transfer",
        "vllm/qwen3-moe/none/transfer",
        "vllm/qwen3/modelopt-mxfp8/transfer+router-exclusion",
        "vllm/qwen3/mxfp8/transfer+replica-left-out",
    },
}


@pytest.mark.parametrize("engine", [pytest.param("sglang", marks=pytest.mark.slow), "vllm"])
def test_core_passes_but_for_what_is_known(engine: str, tmp_path: Path) -> None:
    if find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    path, page = tmp_path / "survey.json", tmp_path / "survey.html"
    words = ["survey", "--engine", engine, "--only", "core", "--json", path, "--html", page]
    ran = subprocess.run(
        [sys.executable, "-m", "syncguard", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    cells = {cell["name"]: cell for cell in json.loads(path.read_text())["cells"]}
    failing = {name for name, cell in cells.items() if cell["status"] == "fail"}
    assert failing == KNOWN[engine]
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
