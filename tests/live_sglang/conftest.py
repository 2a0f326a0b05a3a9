"""Engines of SGLang share a process: the first start costs seconds, a further one a tenth."""

import importlib.util
from pathlib import Path

import pytest

from tests.pairs import Pair, make_pair


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where checkpoints are made; without SGLang there is no need for any."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed: see requirements/cpu.lock")
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def _mxfp8(models: Path) -> Pair:
    return make_pair("sglang", "tiny-qwen3", models, "mxfp8")


@pytest.fixture(scope="session")
def tied(models: Path) -> Pair:
    """A bf16 engine with a tied head."""
    return make_pair("sglang", "tiny-qwen3-tied", models, "none")


@pytest.fixture
def mxfp8(_mxfp8: Pair) -> Pair:
    """A serialized MXFP8 engine that has just been synchronized and found healthy."""
    assert _mxfp8.judge() == {}
    return _mxfp8
