"""Rules that need no reference: what must be equal, whatever the right answer is."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from syncguard.plugin.guarding import GuardedSyncs
from syncguard.protocols import Engine
from syncguard.pytest_plugin import sides

_PROMPTS: Final = [[1, 2, 3, 1, 2, 3, 1, 2], [3, 2, 1], [2, 2, 2, 2, 2]]
_LEARNING_RATE: Final = 1e-2
_LISTED: Final = 5


@pytest.mark.syncguard(conditions="C3 C4 C5")
def test_the_same_weights_again_change_nothing(syncguard_guard: GuardedSyncs) -> None:
    """No byte of any reachable tensor, and no logit."""
    engine = syncguard_guard.engine
    syncguard_guard.sync(poison=0xA5)
    before, scores = engine.state(), _scores(engine)
    syncguard_guard.sync(same_weights=True)
    _require_equal("a second sync of the same weights", before, engine.state())
    gap = np.abs(scores - _scores(engine)).max()
    if gap:
        pytest.fail(f"a second sync of the same weights moved log-probabilities by {gap:.3g}")


@pytest.mark.syncguard(conditions="C3 C4 C5")
def test_finalizing_twice_equals_once(syncguard_guard: GuardedSyncs) -> None:
    """Post-processing starts from canonical tensors, not from its own result."""
    engine: Any = syncguard_guard.engine
    if not hasattr(engine, "finalize"):
        pytest.skip(f"the adapter of {engine.name} offers no finalize()")
    syncguard_guard.sync(poison=0xA5)
    before = engine.state()
    engine.finalize()
    _require_equal("finalizing again", before, engine.state())


@pytest.mark.syncguard(conditions="C2 C3 C5")
def test_size_and_order_of_buckets_do_not_matter(
    syncguard_guard: GuardedSyncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All weights at once, and one at a time from the last to the first."""
    learner, engine = syncguard_guard.learner, syncguard_guard.engine
    syncguard_guard.sync(poison=0xA5, bucket_bytes=1 << 62)
    before = engine.state()
    weights = learner.weights
    monkeypatch.setattr(learner, "weights", lambda: reversed(list(weights())))
    syncguard_guard.sync(poison=0x5A, bucket_bytes=1)
    _require_equal("another size and order of buckets", before, engine.state())


@pytest.mark.syncguard(conditions="C1 C2 C3 C4 C5")
def test_a_second_sync_with_other_values_works_as_the_first(syncguard_guard: GuardedSyncs) -> None:
    """Nothing of the first sync is left in what the second one brings."""
    engine = syncguard_guard.engine
    syncguard_guard.sync(poison=0xA5)
    before = engine.state()
    syncguard_guard.learner.step(_LEARNING_RATE)
    syncguard_guard.sync(what="after a large optimizer step")
    if engine.state() == before:
        pytest.fail(f"an optimizer step of {_LEARNING_RATE} and a sync changed no byte")


@pytest.mark.syncguard(conditions="C3")
def test_a_warm_engine_equals_a_cold_one(
    syncguard_guard: GuardedSyncs, pytestconfig: pytest.Config
) -> None:
    """An engine that held other weights before, and one that gets these first."""
    syncguard_guard.sync(poison=0xA5)
    syncguard_guard.learner.step(_LEARNING_RATE)
    try:
        cold = sides(pytestconfig).cold()
    except Exception as error:  # noqa: BLE001 - whatever keeps an engine from starting
        pytest.skip(f"no second engine can be started: {type(error).__name__}: {error}")
    syncguard_guard.sync(start_cold=lambda: cold)


def _scores(engine: Engine) -> NDArray[np.float64]:
    """Log-probabilities of the prompts' tokens."""
    answers = engine.generate(_PROMPTS, tokens=2, seed=0)
    parts = [
        scores[: len(prompt) - 1] for prompt, (_, scores) in zip(_PROMPTS, answers, strict=True)
    ]
    return np.concatenate(parts)


def _require_equal(what: str, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    __tracebackhide__ = True
    paths = before.keys() | after.keys()
    changed = sorted(path for path in paths if before.get(path) != after.get(path))
    if changed:
        pytest.fail(
            f"{what} changed {len(changed)} of {len(paths)} tensors\n"
            f"  where: {', '.join(changed[:_LISTED])}\n"
            "  expected: the same bytes in every tensor that can be reached from the model\n"
            "  likely cause: a transform that is applied to its own result, or memory that no one "
            "wrote",
            pytrace=False,
        )
