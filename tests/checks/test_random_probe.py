"""C3 by the random probe, and its published form."""

import math
from dataclasses import replace
from typing import Any

import pytest

from syncguard.checks import Judgement
from syncguard.checks.derived_state import random_probe_check
from syncguard.checks.published import published_random_probe
from syncguard.observations import ProbeReference
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import a_model, is_complete, parts_of

LINEAR = ("q.weight", "k.weight", "gate.weight", "lm_head.weight")


def probe(weight: str, worst: float = 0.5, **fields: Any) -> ProbeReference:
    nbytes = a_model().learner_prints()[weight].nbytes
    module = weight.removesuffix(".weight")
    return replace(ProbeReference(module, (weight,), worst, 0.0271, 0.02651, nbytes), **fields)


def healthy() -> list[ProbeReference]:
    return [probe(weight) for weight in LINEAR]


def judged(probes: list[ProbeReference]) -> Judgement:
    model = a_model()
    return random_probe_check(model.layers, model.learner_prints(), probes)


def total_bytes() -> int:
    return sum(item.nbytes for item in healthy())


def test_outputs_within_rounding_pass() -> None:
    probes = healthy()
    probes[2] = replace(probes[2], worst=1.0, error=0.0312)
    judgement = judged(probes)
    assert judgement.status is Status.PASS
    assert judgement.message == "4 layers give what the emulation gives, within rounding"
    assert (judgement.measured, judgement.bound) == (1.0, 1.0)
    assert judgement.evidence == (("relative Frobenius error, largest", "0.0312"),)
    assert judgement.coverage == Coverage(4, 4, total_bytes(), total_bytes())


def test_embeddings_are_looked_up_and_need_no_answer() -> None:
    assert judged(healthy()).coverage.layers_total == len(LINEAR)


def test_a_layer_that_was_not_asked_is_not_covered() -> None:
    judgement = judged(healthy()[:1])
    assert judgement.status is Status.PASS
    assert judgement.message == "1 layer gives what the emulation gives, within rounding"
    assert judgement.coverage == Coverage(1, 4, healthy()[0].nbytes, total_bytes())


@pytest.mark.parametrize("bad", [math.nextafter(1, 2), 1e6, math.inf, math.nan])
def test_one_kernel_beyond_rounding_is_named(bad: float) -> None:
    probes = healthy()
    probes[1] = probe("k.weight", bad, error=1.739)
    judgement = judged(probes)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "k.weight")
    assert judgement.measured == pytest.approx(bad, nan_ok=True)
    assert judgement.bound == 1.0
    assert judgement.coverage.complete
    assert is_complete(judgement)
    told = parts_of(judgement)
    assert told["what"] == "1 kernel is off by more than rounding"
    assert told["where"] == "k.weight"
    assert told["got"] == (
        f"k: {bad:.3g} times the bound, relative Frobenius error 1.7390 (healthy 0.0265)"
    )
    assert judgement.evidence == (
        ("relative Frobenius error, largest", "1.7390"),
        ("k", f"{bad:.3g}"),
    )


def test_all_bad_kernels_are_named_worst_first() -> None:
    probes = [probe("q.weight", 3), probe("k.weight", math.nan), probe("gate.weight", 7)]
    judgement = judged([*probes, probe("lm_head.weight", 1)])
    assert judgement.subject == "k.weight"
    assert math.isnan(judgement.measured or 0)
    assert [name for name, _ in judgement.evidence[1:]] == ["k", "gate", "q"]
    assert parts_of(judgement)["what"] == "3 kernels are off by more than rounding"
    assert parts_of(judgement)["where"] == "k.weight, gate.weight, q.weight"


def test_parts_of_a_fused_layer_count_each() -> None:
    fused = probe("q.weight", module="qkv", parts=("q.weight", "k.weight"))
    judgement = judged([fused, probe("gate.weight"), probe("lm_head.weight")])
    assert judgement.coverage.layers_checked == 4


def test_a_layer_of_no_weight_is_named_by_its_module() -> None:
    judgement = judged([probe("q.weight", 2, parts=())])
    assert judgement.subject == "q"


@pytest.mark.parametrize("first", [math.nan, 0.03])
def test_the_largest_error_of_several_is_nan_if_one_is(first: float) -> None:
    probes = [probe("q.weight", error=first), probe("k.weight", error=0.03)]
    probes.append(probe("gate.weight", error=math.nan))
    assert judged(probes).evidence[0] == ("relative Frobenius error, largest", "nan")


def test_no_answer_is_missing_input() -> None:
    for judgement in (judged([]), published_random_probe([])):
        assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
        assert judgement.message == "there is no layer to probe"


def test_the_published_form_knows_one_tolerance() -> None:
    judgement = published_random_probe([*healthy(), probe("q.weight", 99, error=0.25)])
    assert judgement.status is Status.PASS
    assert judgement.message == "the relative errors of 5 layers are within 0.25"
    assert (judgement.measured, judgement.bound) == (0.25, 0.25)
    assert judgement.coverage.layers_checked == 5


def test_the_published_form_counts_kernels() -> None:
    judgement = published_random_probe([probe("q.weight", error=1), probe("k.weight", error=2)])
    assert parts_of(judgement)["what"] == "2 kernels are off by more than a quarter"


@pytest.mark.parametrize("error", [0.2501, 1.739, math.nan])
def test_the_published_form_sees_a_stale_layout(error: float) -> None:
    judgement = published_random_probe([*healthy(), probe("q.weight", error=error)])
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    told = parts_of(judgement)
    assert told["what"] == "1 kernel is off by more than a quarter"
    assert told["expected"] == "a relative Frobenius error of at most 0.25"
    assert told["got"] == f"q: {error:.4f}"
    assert judgement.bound == 0.25
    assert judgement.measured == pytest.approx(error, nan_ok=True)
    assert judgement.evidence == (("q", f"{error:.4f}"),)
    assert is_complete(judgement)
