import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from syncguard.campaign.pool import Lost, run_jobs


def run(jobs: list[Any], work: Any, timeout_s: float = 30, workers: int = 2) -> dict[Any, Any]:
    return dict(run_jobs(jobs, work, workers=workers, timeout_s=timeout_s))


def slept(seconds: float) -> dict[str, Any]:
    time.sleep(seconds)
    return {}


def test_every_job_has_a_process_of_its_own() -> None:
    results = run(list(range(5)), lambda job: {"job": job, "pid": os.getpid()})
    assert [results[job]["job"] for job in range(5)] == list(range(5))
    pids = {result["pid"] for result in results.values()}
    assert len(pids) == 5
    assert os.getpid() not in pids


def test_a_large_result_comes_whole() -> None:
    assert len(run([0], lambda job: {"text": "x" * 1_000_000})[0]["text"]) == 1_000_000


def test_a_dead_child_costs_its_job_only() -> None:
    def work(job: str) -> dict[str, Any]:
        if job == "exits":
            os.write(2, b"\xff last words")
            os._exit(7)
        if job == "is killed":
            os.kill(os.getpid(), signal.SIGSEGV)
        if job == "raises":
            raise ValueError("no good")
        return {"job": job}

    results = run(["exits", "is killed", "raises", "works"], work)
    assert results["works"] == {"job": "works"}
    assert results["exits"].why == "its process ended with exit code 7; it wrote: \ufffd last words"
    # What it writes depends on who handles signals: a library of another test may.
    assert results["is killed"].why.startswith("its process was killed by SIGSEGV; it wrote: ")
    assert "ValueError: no good" in results["raises"].why


def test_a_hanging_child_is_killed() -> None:
    began = time.monotonic()
    results = run([60, 0], slept, timeout_s=0.5)
    assert results[0] == {}
    assert results[60].why == "no result within 0.5 s"
    assert results[60].seconds >= 0.5
    assert time.monotonic() - began < 20


def test_what_a_child_prints_stays_out_of_the_terminal(capfd: Any) -> None:
    def work(job: int) -> dict[str, Any]:
        sys.stdout.write("noise")
        sys.stdout.flush()
        os.write(1, b"noise")
        return {"stdin": sys.stdin.read()}

    assert run([0], work) == {0: {"stdin": ""}}
    assert capfd.readouterr() == ("", "")


def test_closing_it_ends_the_children() -> None:
    def work(job: int) -> dict[str, Any]:
        if job:
            time.sleep(60)
        return {"pid": os.getpid()}

    seen: list[Any] = []
    with closing(run_jobs([0, 1, 2], work, workers=3, timeout_s=60)) as jobs:
        seen.append(next(jobs))
    assert seen[0][0] == 0
    # All children are dead and were waited for.
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    else:
        raise AssertionError("a child is left")


@pytest.mark.parametrize("then", ["return", "hang", "die"])
def test_what_a_child_has_started_ends_with_it(then: str, tmp_path: Path) -> None:
    def work(job: str) -> dict[str, Any]:
        child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)  # noqa: S607
        (tmp_path / "pid").write_text(str(child.pid))
        if job == "die":
            os._exit(7)
        return slept(60 if job == "hang" else 0)

    run([then], work, timeout_s=1 if then == "hang" else 30)
    started = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while running(started):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_is_the_parents_business() -> None:
    def work(job: int) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return {"alive": True}

    assert run([0], work) == {0: {"alive": True}}


def test_no_descriptor_is_left() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    run([0], lambda job: {})
    before = count()
    run([1, 2, 3], lambda job: os._exit(1) if job == 2 else {})
    assert count() == before


def test_it_tells_that_it_waits() -> None:
    ticks: list[None] = []
    jobs = run_jobs([0.5], slept, workers=1, timeout_s=30, on_wait=lambda: ticks.append(None))
    assert not isinstance(dict(jobs)[0.5], Lost)
    assert len(ticks) >= 2


def test_temporary_files_go_even_those_of_a_child_that_is_killed() -> None:
    usual = tempfile.gettempdir()

    def work(job: str) -> dict[str, Any]:
        folder = tempfile.mkdtemp()
        assert os.environ["TMPDIR"] == tempfile.gettempdir() != usual
        os.write(2, folder.encode())
        if job == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"folder": folder}

    results = run(["is killed", "works"], work)
    left = results["is killed"].why.partition("it wrote: ")[2]
    for folder in (left, results["works"]["folder"]):
        assert folder.startswith(usual)
        assert not Path(folder).parent.exists()
    assert tempfile.gettempdir() == usual
