from collections.abc import Callable
from pathlib import Path

import pytest

from syncguard.learners import TransformersLearner
from syncguard.models import resolve_model

Make = Callable[..., TransformersLearner]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def make(cache: Path) -> Make:
    """Makes a fresh learner; tests may change it."""

    def learner(
        model: str = "tiny-qwen3",
        quantization: str = "mxfp8",
        wire: str = "bf16",
        seed: int = 0,
    ) -> TransformersLearner:
        path = resolve_model(model, cache).path
        return TransformersLearner(path, quantization=quantization, wire=wire, seed=seed)

    return learner
