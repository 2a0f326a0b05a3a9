"""A real fault of vLLM 0.32 on a CPU: a tied lm_head keeps the packed copy of its first weights."""

import pytest

from syncguard.observations import Unreadable
from syncguard.verdict import Status
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("tied")]


def test_the_exact_probe_names_the_head(tied: Pair) -> None:
    verdicts = tied.sync()
    probe = verdicts["exact-probe"]
    assert (probe.status, probe.subject) == (Status.FAIL, "lm_head.weight")
    assert len(probe.evidence) == 1
    assert "for a tied lm_head rebuild the head's own copy too" in probe.message


def test_its_bytes_are_right_so_c2_passes(tied: Pair) -> None:
    verdicts = tied.sync()
    assert verdicts["weight-bytes"].status is Status.PASS
    assert verdicts["weight-values"].status is Status.PASS


def test_its_output_is_bit_identical_before_and_after_a_sync(tied: Pair) -> None:
    """An independent instrument: the head's output does not depend on what was sent."""
    before = next(o for o in tied.engine.probe_random(4, 0) if o.module == "lm_head")
    tied.learner.perturb(3, scale=0.5)
    tied.sync()
    after = next(o for o in tied.engine.probe_random(4, 0) if o.module == "lm_head")
    assert (before.output == after.output).all()


def test_every_other_layer_is_served(tied: Pair) -> None:
    verdicts = tied.sync(poison=0xA5)
    failing = {v.check for v in verdicts.values() if v.status is Status.FAIL}
    assert failing <= {"exact-probe", "random-probe", "gross-divergence", "paired-logprobs"}


def test_packed_linears_are_unreadable_but_probed(tied: Pair) -> None:
    held = tied.engine.weight_prints()["model.layers.0.self_attn.q_proj.weight"]
    assert isinstance(held, Unreadable)
    assert "size 0" in held.why
    assert "through the exact probe" in tied.sync()["weight-bytes"].message
