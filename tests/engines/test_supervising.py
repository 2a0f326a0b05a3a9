"""A supervised command ends with whoever wanted it, and takes along all that it started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TREE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid, flush=True)
time.sleep(100)
"""
"""A command with a process of its own, whose number it tells."""

PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "syncguard.engines.supervising", *sys.argv[1:]],
                 stdin=subprocess.PIPE)
time.sleep(100)
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    until = time.monotonic() + 20
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not runs(pid)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def supervised(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "syncguard.engines.supervising", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_all_of_it_ends_when_it_is_let_go(started: list[subprocess.Popen[str]]) -> None:
    process = supervised(sys.executable, "-c", TREE)
    started.append(process)
    grandchild = int(first_line(process))
    assert runs(grandchild)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(20) == 128 + signal.SIGTERM
    assert ends(grandchild)


def test_all_of_it_ends_when_the_parent_is_killed(started: list[subprocess.Popen[str]]) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, "-c", TREE],
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(parent)
    grandchild = int(first_line(parent))
    assert runs(grandchild)
    parent.kill()
    assert ends(grandchild)


def test_the_exit_code_comes_back(started: list[subprocess.Popen[str]]) -> None:
    started.append(supervised(sys.executable, "-c", "raise SystemExit(7)"))
    assert started[0].wait(20) == 7


def test_what_a_command_leaves_behind_ends_with_it(started: list[subprocess.Popen[str]]) -> None:
    leaving = TREE.replace("time.sleep(100)\n", "")
    process = supervised(sys.executable, "-c", leaving)
    started.append(process)
    assert ends(int(first_line(process)))
    assert process.wait(20) == 0


def test_it_is_light() -> None:
    code = "import sys, syncguard.engines.supervising; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ran.stdout.strip() == "False"
