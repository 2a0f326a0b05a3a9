"""Two live vLLMs that serve one policy: each is judged, and one that is left out is named."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from syncguard.verdict import Reason, Status
from tests.live.conftest import make_pair
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("replicas")]

WEIGHT = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def _replicas(models: Path) -> Iterator[Pair]:
    pair = make_pair(models, "tiny-qwen3", "mxfp8", replicas=2)
    yield pair
    pair.engine.close()


@pytest.fixture
def replicas(_replicas: Pair) -> Pair:
    """Two replicas that have just been synchronized and found healthy."""
    assert _replicas.judge() == {}
    return _replicas


def test_every_condition_passes_on_both(replicas: Pair) -> None:
    verdicts = replicas.sync(poison=0xA5)
    counted = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert {v.check: v.message for v in counted if v.status is not Status.PASS} == {}
    assert {v.condition for v in counted} >= {f"C{number}" for number in range(1, 8)}
    assert {layer.rank for layer in replicas.engine.layers()} == {0, 1}
    prints = replicas.engine.weight_prints()
    assert {f"{name}@rank1" for name in prints if "@" not in name} <= prints.keys()
    assert verdicts["ranks"].coverage.layers_checked == 2


def test_replicas_share_nothing(replicas: Pair) -> None:
    tables = [replica.worker.model_runner.model for replica in replicas.engine._replicas]
    first, second = ({id(module) for module in model.modules()} for model in tables)
    assert first.isdisjoint(second)


def test_one_that_is_left_out_is_named(replicas: Pair) -> None:
    replicas.learner.perturb(1, scale=0.5)
    with replicas.seam("receive", "rank1").wrap(lambda original: lambda *bucket: None):
        verdicts = replicas.sync(poison=0xA5)
    failing = {v.condition for v in verdicts.values() if v.status is Status.FAIL}
    assert {"C2", "C3", "C5", "C7"} <= failing
    bytes_ = dict(verdicts["weight-bytes"].evidence)
    assert f"{WEIGHT}@rank1" in bytes_
    assert all(name.endswith("@rank1") for name in bytes_)
    assert dict(verdicts["ledger"].evidence)[WEIGHT] == "arrived, but no loader took it on rank 1"
    assert verdicts["ranks"].subject == "rank 1"
    assert verdicts["served-version"].status is Status.PASS  # which is why versions do not do


def test_the_first_one_left_out_is_told_from_a_weight_that_never_came(replicas: Pair) -> None:
    replicas.learner.perturb(2, scale=0.5)
    with replicas.seam("receive", "rank0").wrap(lambda original: lambda *bucket: None):
        verdicts = replicas.sync()
    assert dict(verdicts["ledger"].evidence)[WEIGHT] == "arrived, but no loader took it on rank 0"
    assert verdicts["ranks"].subject == "rank 0"


def test_requests_go_to_both_by_turns(replicas: Pair) -> None:
    with replicas.seam("receive", "rank1").wrap(lambda original: lambda *bucket: None):
        replicas.learner.perturb(3, scale=0.5)
        replicas.sync()
    prompts = [[1, 2, 3, 4, 5]] * 4
    told = [scores.tolist()[:4] for _, scores in replicas.engine.generate(prompts, 1, 0)]
    assert told[0] == told[2] != told[1] == told[3]


def test_a_sync_while_they_sleep_is_served_when_they_wake(replicas: Pair) -> None:
    engine = replicas.engine
    before = engine.state()
    engine.sleep(2)
    asleep = [replica.llm.llm_engine.is_sleeping() for replica in engine._replicas]
    assert asleep == [True, True]
    assert engine.state() == before  # on a CPU nothing is freed
    replicas.learner.step(1e-6)
    engine.begin(99, "99")
    engine.send(list(replicas.learner.weights()))
    engine.finish()
    engine.wake()
    assert [replica.llm.llm_engine.is_sleeping() for replica in engine._replicas] == [False] * 2
    verdicts = {verdict.check: verdict.status for verdict in replicas.guard.judge()}
    assert verdicts["weight-bytes"] is verdicts["exact-probe"] is Status.PASS
    assert verdicts["paired-logprobs"] is Status.PASS
