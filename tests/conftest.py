import contextlib
import gc
import os
import signal
import sys

import pytest

from syncguard.cli import main
from tests.commands import Ran, Run

pytest_plugins = ["pytester"]

# Workers share the cores between them; more threads than that wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell ignores interrupts for what it starts in the background, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)


# What is imported while tests are collected stays: no collection of garbage need look at it.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again, but not in what has been imported."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command of syncguard in this process, at a terminal width of 80."""

    def call(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["syncguard", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        assert isinstance(code, int)
        return Ran(code, *capsys.readouterr())

    # Another test in this process may have imported vLLM.
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setenv("COLUMNS", "80")
    return call
