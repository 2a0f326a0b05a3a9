"""A live vLLM in processes of its own, and other ways for weights to get there."""

from pathlib import Path
from typing import Any

import pytest

from syncguard.errors import Unsupported, UsageError
from syncguard.verdict import Reason, Status
from tests.live.conftest import make_pair

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.mark.parametrize(
    "options",
    [
        {"path": "extension"},
        {"process": "own"},
        {"process": "own", "path": "extension"},
        {"ranks": 2, "path": "extension"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_condition_passes(models: Path, options: dict[str, Any]) -> None:
    pair = make_pair(models, "tiny-qwen3", "mxfp8", **options)
    verdicts = pair.sync(poison=0xA5)
    pair.learner.step(1e-6)
    later = [pair.judge(poison=0x5A), pair.judge(same_weights=True)]
    pair.engine.close()
    counted = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert {v.check: v.message for v in counted if v.status is not Status.PASS} == {}
    assert {v.condition for v in counted} >= {f"C{number}" for number in range(1, 8)}
    assert later == [{}, {}]


def test_a_weight_that_no_extension_finds_is_missed(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(models, "tiny-qwen3", "mxfp8", path="extension")
    weights = pair.learner.weights
    name = "model.layers.0.mlp.down_proj.weight"
    monkeypatch.setattr(
        pair.learner, "weights", lambda: (held for held in weights() if held[0] != name)
    )
    assert dict(pair.sync()["ledger"].evidence) == {name: "never arrived"}


def test_faults_are_not_armed_in_other_processes(models: Path) -> None:
    pair = make_pair(models, "tiny-qwen3", "none", process="own")
    with pytest.raises(Unsupported, match="the model is in another one"):
        pair.engine.seams()
    pair.engine.close()


def test_tensors_do_not_cross_processes(models: Path) -> None:
    with pytest.raises(UsageError, match="take path 'transfer' or 'extension'"):
        make_pair(models, "tiny-qwen3", "none", process="own", path="reload")
