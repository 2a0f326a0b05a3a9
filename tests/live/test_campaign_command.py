"""``syncguard campaign`` on a live vLLM that the command line describes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from syncguard.campaign.result import validate

pytestmark = [pytest.mark.live, pytest.mark.slow]

LAYER = "model.layers.0.self_attn.qkv_proj"
QKV = f"{LAYER}.weight_scale_swizzled"
EXPERT = "model.layers.1.mlp.experts.1.gate_proj.weight"


def campaign(*arguments: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    written = folder / "campaign.json"
    own = ["--session", str(folder / "session"), "--json", str(written)]
    ran = subprocess.run(
        [sys.executable, "-m", "syncguard", "campaign", "--engine", "vllm", *arguments, *own],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return ran, json.loads(written.read_text()) if written.exists() else None


@pytest.mark.parametrize(
    ("options", "fault", "site"),
    [
        (["--tp", "2"], "stale-swizzled-scales", f"rank1:{QKV}"),
        (["--process", "own"], "stale-swizzled-scales", QKV),
        (["--process", "server"], "stale-swizzled-scales", QKV),
        (["--model", "tiny-qwen3-moe"], "gate-and-up-swapped", EXPERT),
        (["--model", "tiny-qwen3-moe", "--path", "extension"], "weight-never-sent", EXPERT),
        (["--quantization", "modelopt-mxfp8", "--path", "reload"], "processed-flag", LAYER),
    ],
    ids=lambda value: "-".join(value[1::2]) if isinstance(value, list) else None,
)
def test_a_fault_is_found_in_the_engine_that_is_asked_for(
    options: list[str], fault: str, site: str, tmp_path: Path
) -> None:
    told = [*options, "--faults", fault, "--sites", site, "--stages", "load", "--healthy", "0"]
    ran, value = campaign(*told, folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    validate(value)
    (cell,) = value["cells"]
    assert (cell["site"], cell["outcome"]) == (site, "detected")
    # What a session never brought is fresh memory in vLLM, so the poison is gone all the same.
    assert set(cell["claimed_by"]) - set(cell["seen_at"]) <= {"poison-coverage"}


@pytest.mark.parametrize("what", [["--faults", "sent-twice"], ["--no-faults", "--healthy", "1"]])
def test_what_no_engine_can_be_is_text(what: list[str], tmp_path: Path) -> None:
    ran, value = campaign("--tp", "2", "--path", "reload", *what, folder=tmp_path)
    assert (ran.returncode, value) == (2, None)
    assert "path 'reload' hands over tensors, which cannot cross to other" in ran.stderr
    assert "Traceback" not in ran.stderr
