"""C3 by block sums, layers in turn."""

from dataclasses import replace
from typing import Any

import pytest

from syncguard.checks import Judgement
from syncguard.checks.block_probe import block_probe_check
from syncguard.observations import BlockProbe, Rotation
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import a_model, is_complete, parts_of

ROTATION = Rotation({"q": 0}, ("q.weight", "k.weight", "lm_head.weight"), 3, 2, 3)
PRINTS = a_model().learner_prints()


def probe(weight: str = "q.weight", wrong: int = 0, **fields: Any) -> BlockProbe:
    row = BlockProbe(weight.removesuffix(".weight"), (weight,), wrong, 64, "row 3, block 1")
    return replace(row, **fields)


def judged(*probes: BlockProbe) -> Judgement:
    return block_probe_check(PRINTS, probes, ROTATION)


def nbytes(*weights: str) -> int:
    return sum(PRINTS[weight].nbytes for weight in weights)


def test_right_sums_pass_for_the_layers_whose_turn_it_is() -> None:
    judgement = judged(probe())
    assert judgement.status is Status.PASS
    lately = "2 of 3 layers in the last 3 syncs"
    assert judgement.message == f"1 layer serves the learner's blocks to the bit; {lately}"
    assert judgement.evidence == (("covered lately", lately),)
    total = nbytes(*ROTATION.names)
    assert judgement.coverage == Coverage(1, 3, nbytes("q.weight"), total)
    assert (judgement.measured, judgement.bound) == (0, 0)
    assert judged(probe(), probe("k.weight")).message.startswith("2 layers serve ")


def test_a_wrong_sum_is_named() -> None:
    judgement = judged(probe("k.weight"), probe(wrong=5))
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    assert (judgement.measured, judgement.bound) == (5, 0)
    assert judgement.evidence[1:] == (("q", "5 answers"),)
    told = parts_of(judgement)
    assert told["what"] == "1 kernel computes with other blocks than the learner's"
    assert told["where"] == "q.weight"
    assert told["got"] == "q: 5 of 64 answers differ, the first in row 3, block 1"
    assert is_complete(judgement)


def test_all_wrong_kernels_are_named() -> None:
    fused = probe(wrong=1, module="qkv", parts=("q.weight", "k.weight"))
    judgement = judged(fused, probe("lm_head.weight", 2))
    assert judgement.measured == 3
    assert parts_of(judgement)["what"].startswith("2 kernels compute ")
    assert parts_of(judgement)["where"] == "q.weight, k.weight, lm_head.weight"


def test_a_weight_that_is_probed_in_two_places_counts_once() -> None:
    judgement = judged(probe(), probe(module="q@replica1"))
    assert judgement.coverage.layers_checked == 1
    assert judgement.coverage.bytes_checked == nbytes("q.weight")


def test_a_layer_that_takes_no_turn_is_covered_besides() -> None:
    assert judged(probe("gate.weight")).coverage == Coverage(
        1, 4, nbytes("gate.weight"), nbytes("gate.weight", *ROTATION.names)
    )


def test_a_layer_of_no_weight_is_named_by_its_module() -> None:
    assert judged(probe(wrong=1, parts=())).subject == "q"


@pytest.mark.parametrize(
    ("rotation", "reason", "told"),
    [
        (None, Reason.NOT_APPLICABLE, "every layer is probed exactly in this profile"),
        (ROTATION, Reason.MISSING_INPUT, "there is no layer to probe"),
    ],
)
def test_nothing_to_probe_is_not_run(rotation: Rotation | None, reason: Reason, told: str) -> None:
    judgement = block_probe_check(PRINTS, [], rotation)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, reason)
    assert judgement.message == told
