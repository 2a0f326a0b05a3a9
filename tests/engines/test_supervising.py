"""A supervised command ends with whoever wanted it, and takes along all that it started."""

import os
import signal
import socket
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
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
subprocess.Popen([sys.executable, "-m", "syncguard.engines.supervising", *sys.argv[1:]],
                 stdin=theirs)
theirs.close()
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


class Supervised:
    """A supervised command, and the socket that keeps it alive."""

    def __init__(self, *command: str) -> None:
        self.held, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "syncguard.engines.supervising", *command],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                text=True,
            )

    def close(self) -> None:
        self.held.close()
        self.process.wait(20)


@pytest.fixture
def tree() -> Iterator[Supervised]:
    supervised = Supervised(sys.executable, "-c", TREE)
    yield supervised
    supervised.close()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_all_of_it_ends_when_it_is_let_go(tree: Supervised) -> None:
    grandchild = int(first_line(tree.process))
    assert runs(grandchild)
    tree.held.close()
    assert tree.process.wait(20) == 128 + signal.SIGTERM
    assert ends(grandchild)


def test_the_session_is_told(tree: Supervised) -> None:
    grandchild = int(first_line(tree.process))
    assert int(tree.held.recv(32)) == os.getsid(grandchild) != os.getsid(0)


def test_all_of_it_ends_when_the_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, sys.executable, "-c", TREE],
        stdout=subprocess.PIPE,
        text=True,
    )
    grandchild = int(first_line(parent))
    assert runs(grandchild)
    parent.kill()
    assert ends(grandchild)
    parent.wait()


def test_the_exit_code_comes_back() -> None:
    supervised = Supervised(sys.executable, "-c", "raise SystemExit(7)")
    assert supervised.process.wait(20) == 7
    supervised.close()


def test_what_a_command_leaves_behind_ends_with_it() -> None:
    supervised = Supervised(sys.executable, "-c", TREE.replace("time.sleep(100)\n", ""))
    assert ends(int(first_line(supervised.process)))
    assert supervised.process.wait(20) == 0
    supervised.close()


def test_it_is_light() -> None:
    code = "import sys, syncguard.engines.supervising; print('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ran.stdout.strip() == "False"
