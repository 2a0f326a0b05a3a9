"""C3 by the exact probe: what the kernels compute with, row by row."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks import Judgement
from syncguard.checks.derived_state import exact_probe_check
from syncguard.observations import Unreadable, WeightPrint
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import Model, a_model, is_complete, low, parts_of, plain, served

MATRICES = ("embed.weight", "q.weight", "k.weight", "gate.weight", "lm_head.weight")


def judged(model: Model, **instead: Any) -> Judgement:
    given: dict[str, Any] = {
        "learner_layers": model.layers,
        "learner_prints": model.learner_prints(),
        "learner_values": model.learner_values(),
        "value_history": model.value_history(),
        "exact_probe": model.exact_probe(),
    }
    return exact_probe_check(**{**given, **instead})


def bytes_of(model: Model, *without: str) -> int:
    prints = model.learner_prints()
    return sum(prints[weight].nbytes for weight in MATRICES if weight not in without)


def test_kernels_that_serve_the_learner_pass_with_full_coverage() -> None:
    model = a_model()
    judgement = judged(model)
    assert judgement.status is Status.PASS
    assert judgement.message == "5 layers serve the learner's weights, bit for bit"
    assert judgement.coverage == Coverage(5, 5, bytes_of(model), bytes_of(model))
    assert (judgement.measured, judgement.bound) == (0, 0)
    one = judged(Model({"q.weight": low()}))
    assert one.message == "1 layer serves the learner's weights, bit for bit"


def test_a_stale_kernel_under_right_bytes_is_named() -> None:
    """F3: the canonical bytes are fresh, the copy that the kernel reads is not."""
    old = low(8, 64, seed=22)
    model = a_model(kernels={"q.weight": old}, versions={"version 1": {"q.weight": old}})
    judgement = judged(model)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    assert (judgement.measured, judgement.bound) == (1, 0)
    told = (
        "8 of 8 output rows differ, the first is 0, "
        "which holds row 0 of the learner's q.weight of version 1"
    )
    assert judgement.evidence == (("q.weight", told),)
    assert judgement.coverage.complete
    assert parts_of(judgement) == {
        "what": "1 kernel computes with other weights than the learner",
        "where": "q.weight",
        "expected": "the learner's dequantized weight, bit for bit",
        "got": f"q.weight: {told}",
        "likely cause": "a copy that the kernel reads (swizzled scales, packed or shuffled "
        "weights, a cached cast) was not rebuilt from the synchronized weights",
        "what to do": "if C2 passes for this layer, run its post-processing after the sync, or "
        "rebuild the copy in place; for a tied lm_head rebuild the head's own copy too",
    }


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 7), min_size=1))
def test_any_set_of_wrong_rows_is_counted_and_its_first_named(rows: set[int]) -> None:
    model = a_model()
    for row in rows:
        model.change("q.weight", "elements", (row, 2 * row), 0x80)
    told = dict(judged(model).evidence)["q.weight"]
    assert told == f"{len(rows)} of 8 output rows differ, the first is {min(rows)}"


def test_a_row_of_another_place_of_the_same_weight_is_recognized() -> None:
    model = a_model()
    swapped = {name: tensor.clone() for name, tensor in model.weights["q.weight"].items()}
    for tensor in swapped.values():
        tensor[2] = tensor[5].clone()
    model.kernels["q.weight"] = swapped
    assert dict(judged(model).evidence)["q.weight"].endswith(
        "the first is 2, which holds row 5 of the learner's q.weight"
    )


def test_a_row_of_another_weight_is_recognized() -> None:
    model = a_model()
    model.kernels["k.weight"] = {n: t[2:6] for n, t in model.weights["q.weight"].items()}
    assert dict(judged(model).evidence)["k.weight"].endswith(
        "which holds row 2 of the learner's q.weight"
    )


def test_this_version_comes_before_older_ones_and_the_own_weight_before_others() -> None:
    model = a_model()
    stale = model.weights["q.weight"]
    model.versions = {
        "version 2": {"k.weight": stale, "q.weight": low(seed=8)},
        "version 1": {"q.weight": low(seed=7)},
    }
    model.kernels["k.weight"] = {name: tensor[:4] for name, tensor in stale.items()}
    assert "row 0 of the learner's q.weight" in judged(model).message
    assert "version" not in dict(judged(model).evidence)["k.weight"]
    model.kernels["k.weight"] = {name: tensor[:4] for name, tensor in low(seed=7).items()}
    told = dict(judged(model).evidence)["k.weight"]
    assert told.endswith("row 0 of the learner's q.weight of version 1")
    both = low(seed=6)
    model.versions = {"version 2": {"a": both, "k.weight": both}}
    model.kernels["k.weight"] = {name: tensor[:4] for name, tensor in both.items()}
    assert "learner's k.weight of version 2" in judged(model).message


def test_an_output_of_another_size_is_told() -> None:
    model = a_model(kernels={"q.weight": low(4, 64, seed=2)})
    told = "4 output rows instead of 8"
    assert dict(judged(model).evidence)["q.weight"] == told


def test_all_wrong_kernels_are_evidence_and_counted() -> None:
    model = a_model(kernels={"q.weight": low(seed=8), "embed.weight": plain(6, 64, seed=9)})
    judgement = judged(model)
    assert [name for name, _ in judgement.evidence] == ["embed.weight", "q.weight"]
    assert judgement.measured == 2
    told = parts_of(judgement)
    assert told["what"] == "2 kernels compute with other weights than the learner"
    assert told["where"] == "embed.weight, q.weight"
    assert is_complete(judgement)


@pytest.mark.parametrize("how", ["lost", "unreadable"])
def test_a_layer_that_was_not_probed_is_not_run(how: str) -> None:
    model = a_model()
    probe = model.exact_probe()
    del probe["k.weight"]
    if how == "unreadable":
        probe["k.weight"] = Unreadable("k.weight", "its kernel cannot be called alone")
    why = {"lost": "no serving path was found"}.get(how, "its kernel cannot be called alone")
    judgement = judged(model, exact_probe=probe)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.UNSUPPORTED)
    assert judgement.coverage == Coverage(4, 5, bytes_of(model, "k.weight"), bytes_of(model))
    assert judgement.evidence == (("k.weight", why),)
    assert parts_of(judgement) == {
        "what": "1 layer could not be probed",
        "where": "k.weight",
        "got": why,
        "what to do": "let the adapter run this layer's serving path on rows of the identity",
    }


def test_layers_that_were_not_probed_are_counted() -> None:
    model = a_model(lost={"k.weight", "gate.weight"})
    assert parts_of(judged(model))["what"] == "2 layers could not be probed"
    assert parts_of(judged(model))["where"] == "gate.weight, k.weight"


def test_a_matrix_without_values_of_the_learner_is_not_run() -> None:
    model = a_model()
    values = model.learner_values()
    del values["k.weight"]
    judgement = judged(model, learner_values=values)
    assert judgement.evidence == (("k.weight", "the learner gave no values"),)
    assert judgement.coverage == Coverage(4, 5, bytes_of(model, "k.weight"), bytes_of(model))


def test_a_failure_counts_more_than_what_is_unseen() -> None:
    model = a_model(kernels={"q.weight": low(seed=8)}, lost={"k.weight"})
    judgement = judged(model)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    assert judgement.coverage.layers_checked == 4


def test_one_wrong_copy_among_ranks_is_named() -> None:
    model = a_model(engine={"q.weight@rank1": low(8, 64, seed=2)})
    assert judged(model).status is Status.PASS
    model.kernels["q.weight@rank1"] = low(8, 64, seed=8)
    judgement = judged(model)
    assert (judgement.subject, judgement.measured) == ("q.weight@rank1", 1)
    assert judgement.coverage.complete


def test_a_copy_that_was_not_probed_leaves_its_weight_unchecked() -> None:
    model = a_model(engine={"q.weight@rank1": low(8, 64, seed=2)})
    probe = model.exact_probe() | {"q.weight@rank1": Unreadable("q.weight", "rank 1 is silent")}
    judgement = judged(model, exact_probe=probe)
    assert judgement.evidence == (("q.weight@rank1", "rank 1 is silent"),)
    assert judgement.coverage.layers_checked == 4


def test_a_tied_head_without_a_kernel_of_its_own_is_covered_by_the_embedding() -> None:
    model = a_model(tied={"lm_head.weight": "embed.weight"})
    model.weights["lm_head.weight"] = model.weights["embed.weight"]
    del model.engine["lm_head.weight"]
    judgement = judged(model)
    assert (judgement.status, judgement.coverage.layers_checked) == (Status.PASS, 5)


def test_a_tied_head_with_a_stale_copy_of_its_own_is_named() -> None:
    """vLLM 0.32 on a CPU: the embedding is fresh, the head's packed copy is not."""
    model = a_model(tied={"lm_head.weight": "embed.weight"})
    model.weights["lm_head.weight"] = model.weights["embed.weight"]
    assert judged(model).subject == "lm_head.weight"


@pytest.mark.parametrize("kind", ["buffer", "norm", "bias"])
def test_a_matrix_that_nothing_multiplies_with_needs_no_kernel(kind: str) -> None:
    model = a_model(lost={"gate.weight"})
    model.kinds["gate.weight"] = kind
    judgement = judged(model)
    assert (judgement.status, judgement.coverage.layers_total) == (Status.PASS, 4)


def test_a_kernel_that_the_learner_lacks_is_not_compared() -> None:
    probe = a_model().exact_probe() | {"mtp.weight": served("mtp.weight", low(seed=7))}
    assert judged(a_model(), exact_probe=probe).coverage == judged(a_model()).coverage


@pytest.mark.parametrize("empty", ["learner_values", "exact_probe", "learner_layers"])
def test_nothing_to_probe_is_missing_input(empty: str) -> None:
    judgement = judged(a_model(), **{empty: {}})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "there is no layer to probe"


def test_a_lost_print_costs_its_bytes_and_nothing_else() -> None:
    model = a_model()
    prints = model.learner_prints()
    del prints["q.weight"]
    judgement = judged(model, learner_prints=prints)
    covered = bytes_of(model, "q.weight")
    assert (judgement.status, judgement.coverage) == (Status.PASS, Coverage(5, 5, covered, covered))


def test_a_kernel_may_flush_subnormal_numbers_and_nothing_else() -> None:
    model = a_model()
    values = model.learner_values()["lm_head.weight"]
    probe = model.exact_probe()
    held = probe["lm_head.weight"]
    assert isinstance(held, WeightPrint)
    row = held.rows["values"]
    row[2] ^= np.uint64(1)
    assert judged(model, exact_probe=probe).status is Status.FAIL
    told = {"lm_head.weight": np.where(np.arange(values.size) == 2, row, values)}
    assert judged(model, exact_probe=probe, flushed_values=told).status is Status.PASS
    row[3] ^= np.uint64(1)
    judgement = judged(model, exact_probe=probe, flushed_values=told)
    assert "1 of " in judgement.message
    assert "the first is 3" in judgement.message
