"""``syncguard smoke`` as a user runs it: a process of its own, a live engine, real weights."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.live


def smoke(
    *arguments: str, folder: Path, timeout_s: float = 300
) -> tuple[subprocess.CompletedProcess[str], Any]:
    report = folder / "report.json"
    ran = subprocess.run(
        [sys.executable, "-m", "syncguard", "smoke", *arguments, "--json", str(report)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        # An engine in this process may have set it.
        env={name: held for name, held in os.environ.items() if name != "TORCHDYNAMO_DISABLE"},
        check=False,
    )
    return ran, json.loads(report.read_text()) if report.exists() else None


def statuses(report: Any, condition: str) -> set[str]:
    return {
        verdict["status"]
        for verdict in report["verdicts"]
        if verdict["condition"] == condition and verdict["reason"] != "not_applicable"
    }


@pytest.mark.parametrize("path", ["transfer", pytest.param("reload", marks=pytest.mark.slow)])
def test_mxfp8_passes_every_condition(path: str, tmp_path: Path) -> None:
    ran, report = smoke("--path", path, "--strict", folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for number in range(1, 8):
        assert statuses(report, f"C{number}") == {"pass"}
        assert re.search(rf"^C{number} .* pass ", ran.stdout, re.MULTILINE)
    assert "Traceback" not in ran.stderr
    assert [sync["what"] for sync in report["syncs"]] == [
        "the learner's weights",
        "after one optimizer step",
        "the same weights again",
    ]
    assert report["environment"]["engine"]["kernels"].startswith("Mxfp8OnlineLinearMethod/")


@pytest.mark.slow
def test_bf16_passes_every_condition(tmp_path: Path) -> None:
    ran, report = smoke("--quantization", "none", folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(statuses(report, f"C{number}") == {"pass"} for number in range(1, 8))


@pytest.mark.slow
def test_a_tied_head_fails_c3_and_is_named(tmp_path: Path) -> None:
    ran, report = smoke(
        "--model", "tiny-qwen3-tied", "--quantization", "none", "--syncs", "2", folder=tmp_path
    )
    assert ran.returncode == 1
    assert statuses(report, "C2") == {"pass"}
    subjects = {v["subject"] for v in report["verdicts"] if v["check"] == "exact-probe"}
    assert subjects == {"lm_head.weight"}
    assert "FAIL C3 derived state | exact-probe | lm_head.weight" in ran.stdout


@pytest.mark.parametrize("engine", ["stub", pytest.param("vllm", marks=pytest.mark.slow)])
def test_an_interrupted_run_leaves_a_partial_report(engine: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = ["smoke", "--engine", engine, "--syncs", "500", "--json", str(report)]
    with subprocess.Popen(
        [sys.executable, "-m", "syncguard", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "sync 3 of 500" in line:
                break
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        try:
            stdout, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    written = json.loads(report.read_text())
    assert written["interrupted"] is True
    assert len(written["syncs"]) >= 2
    assert "interrupted" in stdout


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--compile"], ["--tp", "2"], ["--process", "own"]])
def test_other_ways_to_run_pass_every_condition(options: list[str], tmp_path: Path) -> None:
    ran, report = smoke("--model", "tiny-qwen3-moe", *options, folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(statuses(report, f"C{number}") == {"pass"} for number in range(1, 8))


@pytest.mark.slow
def test_ranks_that_a_model_does_not_divide_into_are_refused(tmp_path: Path) -> None:
    ran, _ = smoke("--model", "tiny-llama", "--tp", "2", folder=tmp_path)
    assert ran.returncode == 2
    assert "must be divisible by tensor parallel size (2)" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.slow
def test_addresses_that_were_folded_into_code_fail_c4(tmp_path: Path) -> None:
    """The engine dies or hangs at its next request, so what C4 says comes from before that."""
    options = ["--compile", "--fold", "--quantization", "none", "--process", "own", "--syncs", "1"]
    ran, report = smoke(*options, folder=tmp_path, timeout_s=480)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    (failing,) = [v for v in report["verdicts"] if v["status"] == "fail"]
    assert failing["check"] == "storage-identity"
    assert failing["subject"].endswith(".cpu_linear<handler>.handler_tensor")
    assert len(failing["evidence"]) == 8
    assert statuses(report, "C6") == {"not_run"}


@pytest.mark.slow
def test_weights_that_were_folded_by_reference_pass(tmp_path: Path) -> None:
    ran, report = smoke("--compile", "--fold", folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert all(statuses(report, f"C{number}") == {"pass"} for number in range(1, 8))
