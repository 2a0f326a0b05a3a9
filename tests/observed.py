"""Sides of which observations are made."""

from typing import Any

from syncguard.observations import GraphReads, SyncRecord
from syncguard.observing import SyncContext, View
from tests.checks.fakes import VOCABULARY, FakeEngine, FakeLearner


def a_view(learner: Any = None, engine: Any = None, **fields: Any) -> View:
    record = fields.pop("record", SyncRecord(1, "1"))
    reads = GraphReads(frozenset({"q"}), captured=True)
    return View(learner, engine, SyncContext(record, ("before",), reads, **fields))  # type: ignore[arg-type]


def synced(**fields: Any) -> tuple[FakeLearner, FakeEngine, View]:
    """Both sides after a sync that went well."""
    learner, engine = FakeLearner(), FakeEngine()
    engine.begin(1, "1")
    engine.send(list(learner.weights()))
    view = a_view(learner, engine, record=engine.finish(), vocabulary=VOCABULARY, seed=3, **fields)
    return learner, engine, view
