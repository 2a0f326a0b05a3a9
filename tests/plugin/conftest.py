"""Runs of pytest inside a test, with the plugin."""

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

Running = Callable[..., pytest.RunResult]


@pytest.fixture
def _lasting_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Let a run in this process forget only the modules that it was given.

    It would forget everything that it imports, and neither torch and numba nor our registries can
    be imported twice.
    """
    base = tmp_path_factory.getbasetemp()

    class Snapshot:
        def __init__(self, preserve: object = None) -> None:
            self._known = set(sys.modules)

        def restore(self) -> None:
            for name in set(sys.modules) - self._known:
                file = getattr(sys.modules[name], "__file__", None)
                if file and Path(file).is_relative_to(base):
                    del sys.modules[name]

    monkeypatch.setattr("_pytest.pytester.SysModulesSnapshot", Snapshot)


@pytest.fixture
def pytester(_lasting_imports: None, pytester: pytest.Pytester) -> pytest.Pytester:
    """Pytest's own fixture, with imports that last."""
    return pytester


@pytest.fixture
def running(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Running:
    """Write a test file, and run pytest on it in this process."""
    monkeypatch.setenv("COLUMNS", "100")
    pytester.syspathinsert()

    def run(tests: str, *arguments: str, **modules: str) -> pytest.RunResult:
        for name, source in modules.items():
            pytester.makepyfile(**{name: dedent(source)})
        pytester.makepyfile(test_it=dedent(tests))
        return pytester.runpytest_inprocess(
            "-p", "no:randomly", "-p", "no:cacheprovider", *arguments
        )

    return run
