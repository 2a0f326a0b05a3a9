"""A live vLLM with a model that drafts: a sync leaves it as it is, and what changes it is named."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from syncguard.engines.buckets import write_bucket
from syncguard.models import resolve_model
from syncguard.verdict import Status
from tests.live.conftest import make_pair
from tests.live.test_smoke_command import smoke, statuses
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("draft")]

SAMPLED = "sampled-tokens"
"""Fails wherever vLLM drafts on a CPU, see docs/findings/vllm-drafted-sampling.md."""


@pytest.fixture(scope="module")
def _drafted(models: Path) -> Iterator[Pair]:
    draft = resolve_model("tiny-qwen3", models).path
    pair = make_pair(models, "tiny-qwen3", "none", draft=draft)
    yield pair
    pair.engine.close()


@pytest.fixture
def drafted(_drafted: Pair) -> Pair:
    """An engine that drafts, just synchronized and found healthy."""
    assert judged(_drafted, poison=0xA5) == {}
    return _drafted


def judged(pair: Pair, **options: Any) -> dict[str, str]:
    """Sync; what is no pass, but for what vLLM does to tokens after drafts on a CPU."""
    found = pair.judge(**options)
    assert found.pop(SAMPLED).startswith("fail")
    return found


def failing(pair: Pair) -> dict[str, set[str]]:
    """What is named by each check that fails, without another sync."""
    return {
        verdict.check: {name for name, _ in verdict.evidence}
        for verdict in pair.guard.judge()
        if verdict.status is Status.FAIL
    }


def update_draft(pair: Pair, weights: list[tuple[str, torch.Tensor]], folder: Path) -> None:
    """A session of vLLM for the draft."""
    (replica,) = pair.engine._replicas
    replica.llm.start_draft_weight_update()
    replica.update(*write_bucket(weights, folder))
    replica.finish_update()


def test_a_sync_brings_nothing_to_the_draft(drafted: Pair) -> None:
    before = drafted.engine.preserved()
    drafted.learner.perturb(1, scale=0.5)
    assert judged(drafted) == {}
    after = drafted.engine.preserved()
    assert before == after
    packed = "draft.model.layers.0.mlp.up_proj.weight<served>"
    assert {packed, "draft.model.norm.weight", "draft.lm_head.weight<served>"} <= after.keys()
    assert packed.removesuffix("<served>") not in after  # only its kernel can be asked


def test_drafts_are_read_by_the_forward(drafted: Pair) -> None:
    read = {path for path in drafted.engine.graph_reads().paths if path.startswith("draft.")}
    assert read <= {row.path for row in drafted.engine.storage()}
    assert "draft.model.norm.weight" in read


def test_a_session_for_the_draft_changes_it_alone(drafted: Pair, tmp_path: Path) -> None:
    kept = drafted.engine.state()
    update_draft(drafted, [(name, w * 1.5) for name, w in drafted.learner.weights()], tmp_path)
    assert drafted.engine.state() == kept
    found = failing(drafted)
    del found[SAMPLED]
    (named,) = found.values()
    assert len(named) == 27
    assert all(name.startswith("draft.") for name in named)


def test_layers_that_a_model_brings_share_its_head(tmp_path: Path) -> None:
    options = ["--model", "tiny-glm4-moe", "--draft", "tiny-glm4-moe"]
    ran, report = smoke(*options, folder=tmp_path)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    failed = {v["check"] for v in report["verdicts"] if v["status"] == "fail"}
    assert failed == {SAMPLED}
    assert statuses(report, "C10") == {"pass"}
    assert report["environment"]["engine"]["draft"].startswith("tiny-glm4-moe")


def test_a_draft_with_experts_that_the_model_has_not_is_refused(tmp_path: Path) -> None:
    ran, _ = smoke("--draft", "tiny-qwen3-moe", folder=tmp_path)
    assert ran.returncode == 2
    assert "vLLM does not start with a model that drafts" in ran.stderr
    assert "expert parallel group is not initialized" in ran.stderr
    assert "Traceback" not in ran.stderr
