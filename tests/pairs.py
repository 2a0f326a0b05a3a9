"""A live engine, its learner, and the guard around their syncs."""

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from syncguard.guard import Guard
from syncguard.models import resolve_model
from syncguard.report import Report
from syncguard.seams import Seam
from syncguard.sides import trained_in
from syncguard.verdict import Status, Verdict

__all__ = ["BUCKET_BYTES", "Pair", "make_pair"]

BUCKET_BYTES = 200_000
"""A few buckets a sync."""

_CLASSES = {"sglang": "SglangEngine", "vllm": "VllmEngine"}


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
    """Both sides and the guard."""

    learner: Any
    engine: Any
    guard: Guard

    @property
    def model(self) -> Any:
        """The live model, for faults."""
        return self.engine._model

    def seam(self, name: str, site: str) -> Seam:
        seam: Seam = self.engine.seams()[name][site]
        return seam

    def sync(self, **options: Any) -> dict[str, Verdict]:
        """Sync in a few buckets; the verdicts by check."""
        _, verdicts = self.guard.sync(bucket_bytes=BUCKET_BYTES, **options)
        return {verdict.check: verdict for verdict in verdicts}

    def judge(self, **options: Any) -> dict[str, str]:
        """Sync, and tell only what is not a pass: check to status and subject."""
        return {
            name: f"{verdict.status} {verdict.subject}".strip()
            for name, verdict in self.sync(**options).items()
            if verdict.status is not Status.PASS and verdict.counts
        }


def make_pair(engine: str, model: str, folder: Path, quantization: str, **options: Any) -> Pair:
    """Start an engine on other weights than those of its learner."""
    from syncguard.learners import TransformersLearner

    adapter = getattr(importlib.import_module(f"syncguard.engines.{engine}"), _CLASSES[engine])
    checkpoint = resolve_model(model, folder)
    started = adapter(checkpoint.path, quantization, **options)
    lowered = trained_in(quantization)
    learner = TransformersLearner(checkpoint.path, quantization=lowered, wire=started.wire)
    guard = Guard(learner, started, Heard(), vocabulary=checkpoint.config["vocab_size"])
    return Pair(learner, started, guard)
