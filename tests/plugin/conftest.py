"""Runs of pytest inside a test, with the plugin.

What a run in this process imports is forgotten at its end, and torch and registries cannot be
imported twice; so everything that the plugin uses is imported here.
"""

from collections.abc import Callable
from textwrap import dedent

import pytest

import syncguard.faults
import syncguard.plugin.collecting
import syncguard.plugin.faulting
import syncguard.plugin.guarding
import syncguard.plugin.markers
import syncguard.plugin.terminal
import syncguard.plugin.trying  # noqa: F401

Running = Callable[..., pytest.RunResult]


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
