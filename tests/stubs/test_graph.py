"""A captured graph reads the storages that it captured."""

import numpy as np
import pytest

from syncguard.stubs import StubEngine, StubLearner, Topology
from tests.stubs.helpers import pair, places, policy_gap, skipping, sync

_DOWN = "model.layers.0.mlp.down_proj"
_PROMPT = [[3, 1, 4, 1, 5]]


@pytest.mark.parametrize("graph", [True, False])
def test_rebound_parameter(graph: bool) -> None:
    learner, engine = pair(Topology(layers=1, graph=graph))
    sync(learner, engine)
    before = places(engine)
    learner.perturb(0.3, seed=2)
    with engine.seams()["fold"][_DOWN].wrap(skipping):
        sync(learner, engine, 2)
    moved = {path for path, place in places(engine).items() if place != before[path]}
    assert moved == {f"{_DOWN}.weight", f"{_DOWN}.weight_scale"}
    prompt, decoded = _gaps(learner, engine)
    assert prompt < 0.05  # prefill looks parameters up anew
    assert (decoded > 0.1) == graph
    engine.capture()
    assert policy_gap(learner, engine) < 0.05


@pytest.mark.parametrize("graph", [True, False])
def test_rebound_derived_tensor(graph: bool) -> None:
    learner, engine = pair(Topology(layers=1, graph=graph, linear_kernel="twin"))
    sync(learner, engine)
    learner.perturb(0.3, seed=2)
    seam = engine.seams()["storage"][f"{_DOWN}.weight_twin"]
    with seam.wrap(lambda original: lambda layer, name, fresh: setattr(layer, name, fresh)):
        sync(learner, engine, 2)
    prompt, decoded = _gaps(learner, engine)
    assert prompt < 0.05
    assert (decoded > 0.1) == graph


def test_broken_alias_of_a_norm() -> None:
    learner, engine = pair(Topology(layers=1, graph=False))
    sync(learner, engine)
    learner.perturb(1.0, seed=2)
    with engine.seams()["fold"]["model.norm"].wrap(skipping):
        sync(learner, engine, 2)
    storages = {row.path: row.storage for row in engine.storage()}
    assert storages["model.norm.weight"] != storages["model.norm.kernel_weight"]
    assert policy_gap(learner, engine) > 0.1


def test_graph_reads_name_only_what_is_still_reachable() -> None:
    learner, engine = pair(Topology(layers=1))
    sync(learner, engine)
    assert f"{_DOWN}.weight" in engine.graph_reads().paths
    with engine.seams()["fold"][_DOWN].wrap(skipping):
        sync(learner, engine, 2)
    reads = engine.graph_reads()
    assert f"{_DOWN}.weight" in reads.paths  # by prefill
    assert reads.captured


def _gaps(learner: StubLearner, engine: StubEngine) -> tuple[float, float]:
    """Largest difference to the learner on the prompt, and on what was decoded."""
    [(sequence, scores)] = engine.generate(_PROMPT, 6, seed=0)
    [wanted] = learner.logprobs([sequence])
    gaps = np.abs(scores - wanted)
    given = len(_PROMPT[0]) - 1
    # The first new token is sampled from what prefill gave.
    return float(gaps[: given + 1].max()), float(gaps[given + 1 :].max())
