"""Without a fault, a synchronized engine is the learner."""

import numpy as np
import pytest

from syncguard.stubs import Topology
from tests.stubs.helpers import (
    PROMPTS,
    TOPOLOGIES,
    differing_prints,
    differing_probes,
    pair,
    places,
    policy_gap,
    rederived_wrong,
    sync,
)

# One bf16 rounding that falls the other way costs less; a wrong weight costs more.
_ROUNDING = 0.05


@pytest.fixture(params=TOPOLOGIES, name="topology")
def _topology(request: pytest.FixtureRequest) -> Topology:
    return TOPOLOGIES[request.param]


def test_engine_starts_on_other_weights(topology: Topology) -> None:
    learner, engine = pair(topology)
    assert policy_gap(learner, engine) > 1
    assert differing_probes(learner, engine) == set(engine.probe_exact())


def test_sync_brings_the_policy(topology: Topology) -> None:
    learner, engine = pair(topology)
    unreadable = {"lm_head.weight"} if topology.head_kernel == "freed" else set()
    for number in (1, 2):
        record = sync(learner, engine, number)
        assert (record.error, record.unfolded) == ("", [])
        assert record.served_version == str(number)
        assert differing_prints(learner, engine) == unreadable
        assert not differing_probes(learner, engine)
        assert not rederived_wrong(engine)
        assert policy_gap(learner, engine) < _ROUNDING
        learner.step(1e-3)


def test_layers_are_those_of_the_learner(topology: Topology) -> None:
    learner, engine = pair(topology)
    mine = {row.weight: row.grid for row in learner.layers() if row.kind not in _UNLISTED}
    theirs = {weight: row.grid for row in engine.layers() for weight in row.parts}
    assert mine == theirs
    assert ("mxfp8" in mine.values()) == (topology.quantization == "mxfp8")


_UNLISTED = ("norm", "bias", "buffer")


def test_sync_moves_no_storage(topology: Topology) -> None:
    learner, engine = pair(topology)
    policy_gap(learner, engine)
    engine.probe_exact()  # builds what is built at first use
    before = places(engine)
    sync(learner, engine)
    assert places(engine) == before


def test_same_weights_change_nothing(topology: Topology) -> None:
    learner, engine = pair(topology)
    sync(learner, engine)
    engine.probe_exact()
    before, answers = engine.state(), engine.generate(PROMPTS, 4, seed=1)
    sync(learner, engine, 2, per_bucket=3)
    assert engine.state() == before
    again = engine.generate(PROMPTS, 4, seed=1)
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in answers]
    for (_, one), (_, other) in zip(answers, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_finalizing_again_changes_nothing(topology: Topology) -> None:
    learner, engine = pair(topology)
    sync(learner, engine)
    engine.probe_exact()
    before = engine.state(), places(engine)
    engine.finalize()
    assert (engine.state(), places(engine)) == before


def test_warm_engine_equals_a_cold_one(topology: Topology) -> None:
    learner, warm = pair(topology)
    sync(learner, warm)
    learner.perturb(0.1, seed=5)
    sync(learner, warm, 2)
    _, cold = pair(topology)
    sync(learner, cold)
    for engine in (warm, cold):
        engine.probe_exact()
    assert warm.state() == cold.state()


def test_order_and_size_of_buckets_do_not_matter(topology: Topology) -> None:
    learner, engine = pair(topology)
    sync(learner, engine)
    before = engine.state()
    engine.begin(2, "2")
    for item in reversed(list(learner.weights())):
        engine.send([item])
    engine.finish()
    assert engine.state() == before


def test_captured_forward_reads_what_is_reachable(topology: Topology) -> None:
    learner, engine = pair(topology)
    sync(learner, engine)
    reads = engine.graph_reads()
    assert reads.captured == topology.graph
    read = {row.storage for row in engine.storage() if row.path in reads.paths}
    loaded = {
        row.path: row.storage
        for row in engine.storage()
        if row.kind == "parameter" and row.nbytes and "reload" not in row.path
    }
    unread = {path for path, storage in loaded.items() if storage not in read}
    # Kernels read copies of these, and a draft model is not part of the forward.
    assert all(_is_copied(topology, path) for path in unread), unread


def _is_copied(topology: Topology, path: str) -> bool:
    copied = ("weight_scale", "kv_b_proj", "speculator")
    if any(part in path for part in copied) or path.endswith("lm_head.weight"):
        return True
    layout = topology.expert_kernel if ".experts." in path else topology.linear_kernel
    return layout in ("cached", "twin")
