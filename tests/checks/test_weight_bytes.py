"""C2 by bytes: every weight, every copy, every row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks import Judgement
from syncguard.checks.weight_grid import weight_bytes
from syncguard.grids import to_grid
from syncguard.observations import WeightPrint
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import (
    Model,
    a_model,
    is_complete,
    low,
    parts_of,
    plain,
    printed,
    served,
    values_of,
)


def judged(model: Model, **instead: Any) -> Judgement:
    given: dict[str, Any] = {
        "learner_layers": model.layers,
        "learner_prints": model.learner_prints(),
        "packed_values": model.learner_values(),
        "weight_prints": model.weight_prints(),
        "packed_probe": model.exact_probe(),
    }
    if "differences" not in instead:
        instead["differences"] = model.differences()
    return weight_bytes(**{**given, **instead})


def total_bytes(model: Model) -> int:
    return sum(held.nbytes for held in model.learner_prints().values())


def test_equal_bytes_pass_with_full_coverage() -> None:
    model = a_model()
    judgement = judged(model)
    assert judgement.status is Status.PASS
    assert judgement.message == "6 weights are the learner's"
    assert judgement.coverage == Coverage(6, 6, total_bytes(model), total_bytes(model))
    assert (judgement.measured, judgement.bound) == (0, 0)


def test_one_weight_is_told_in_the_singular() -> None:
    assert judged(Model({"q": low()})).message == "1 weight is the learner's"


@pytest.mark.parametrize(
    ("key", "component"),
    [
        ("q.weight", "elements"),
        ("q.weight", "scales"),
        ("gate.weight", "values"),
        ("embed.weight", "values"),
    ],
)
@pytest.mark.parametrize("bit", [0, 7])
def test_one_flipped_bit_is_named_by_weight_and_row(key: str, component: str, bit: int) -> None:
    model = a_model()
    model.change(key, component, (3, 1), 1 << bit)
    judgement = judged(model)
    assert (judgement.status, judgement.subject) == (Status.FAIL, key)
    assert (judgement.measured, judgement.bound) == (1, 0)
    rows = next(iter(model.weights[key].values())).shape[0]
    assert f"{key}: 1 of {rows} rows differ, the first is 3: " in parts_of(judgement)["got"]
    assert judgement.coverage.complete


def test_a_vector_is_one_row() -> None:
    model = a_model()
    model.change("norm.weight", "values", (9,))
    told = dict(judged(model).evidence)
    assert told == {
        "norm.weight": "1 of 1 rows differ, the first is 0: "
        "0.8% of the bytes of the sampled rows differ"
    }


def test_the_message_has_all_parts_and_evidence_all_weights() -> None:
    model = a_model()
    for key in ("k.weight", "q.weight"):
        model.change(key, "elements", (0, 0))
    judgement = judged(model)
    assert is_complete(judgement)
    told = parts_of(judgement)
    assert told["what"] == "2 weights differ from what the learner's forward used"
    assert told["where"] == "q.weight, k.weight"
    assert told["expected"] == "the bytes of the learner's forward grid"
    assert [name for name, _ in judgement.evidence] == ["q.weight", "k.weight"]
    model = a_model()
    model.change("q.weight", "elements", (0, 0))
    what = "1 weight differs from what the learner's forward used"
    assert parts_of(judged(model))["what"] == what


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 19), min_size=1), st.sampled_from(["elements", "scales"]))
def test_any_set_of_differing_rows_is_counted_and_its_first_named(
    rows: set[int], component: str
) -> None:
    model = Model({"q": low(20, 32)})
    for row in rows:
        model.change("q", component, (row, 0))
    told = dict(judged(model).evidence)["q"]
    assert told.startswith(f"{len(rows)} of 20 rows differ, the first is {min(rows)}: ")


def test_a_difference_counts_even_if_nobody_described_it() -> None:
    """A lost description must not turn differing bytes into a pass."""
    model = a_model()
    model.change("q.weight", "elements", (3, 1))
    judgement = judged(model, differences=[])
    assert judgement.evidence == (("q.weight", "1 of 8 rows differ, the first is 3"),)


def zero_blocks(rows: int = 40) -> Model:
    """A weight with an all-zero block in every row, whose scales the engine sets otherwise."""
    tensors = low(rows, 64)
    tensors["elements"][:, :32] = 0
    model = Model({"q": tensors})
    model.engine["q"]["scales"][:, 0] = 127
    return model


def test_scales_of_all_zero_blocks_may_differ() -> None:
    assert judged(zero_blocks()).status is Status.PASS


def test_a_real_difference_behind_many_harmless_rows_is_found() -> None:
    """The first rows that differ are harmless; what counts comes far behind them."""
    model = zero_blocks()
    model.change("q", "scales", (37, 1))
    judgement = judged(model)
    assert judgement.status is Status.FAIL
    assert "40 of 40 rows differ" in judgement.message
    assert "1 scale of the sampled rows" not in judgement.message  # zero blocks differ as well


def test_a_changed_encoding_behind_many_harmless_rows_is_found() -> None:
    model = zero_blocks()
    model.engine["q"]["elements"][37, 0] = torch.tensor(-0.0).to(torch.float8_e4m3fn)
    judgement = judged(model)
    assert judgement.status is Status.FAIL
    assert judgement.message.count("the same values in another encoding") == 1


def test_a_format_that_holds_every_value_passes() -> None:
    """A router that the engine keeps in float32 computes with the same weights."""
    model = a_model()
    model.engine["gate.weight"] = {"values": model.weights["gate.weight"]["values"].float()}
    judgement = judged(model)
    assert (judgement.status, judgement.coverage.layers_checked) == (Status.PASS, 6)


def test_a_wide_format_with_one_other_value_fails() -> None:
    model = a_model()
    wide = model.weights["gate.weight"]["values"].float()
    wide[3, 63] += 2**-20
    model.engine["gate.weight"] = {"values": wide}
    judgement = judged(model)
    assert judgement.subject == "gate.weight"
    assert "other values, as torch.float32 instead of torch.bfloat16" in judgement.message


def test_a_narrow_format_that_lost_bits_fails() -> None:
    """A float32 correction bias that a loader rounds to bf16 is another bias."""
    model = Model({"bias": plain(16, dtype=torch.float32)})
    model.engine["bias"] = {"values": model.weights["bias"]["values"].bfloat16()}
    judgement = judged(model)
    assert judgement.subject == "bias"
    assert "other values, as torch.bfloat16 instead of torch.float32" in judgement.message


def test_a_narrow_format_that_lost_nothing_passes() -> None:
    model = Model({"bias": {"values": torch.tensor([0.5, -2.0, 0.0, 1.0])}})
    model.engine["bias"] = {"values": model.weights["bias"]["values"].bfloat16()}
    assert judged(model).status is Status.PASS


def test_a_negative_zero_in_the_same_format_is_another_byte() -> None:
    model = Model({"norm": {"values": torch.zeros(4)}})
    model.engine["norm"] = {"values": torch.tensor([0.0, -0.0, 0.0, 0.0])}
    judgement = judged(model)
    assert judgement.status is Status.FAIL
    assert "the same values in another encoding" in judgement.message


def test_a_layer_that_was_left_unquantized_fails() -> None:
    """F2: the engine holds and serves bf16 where the learner computes in MXFP8."""
    model = a_model()
    bf16 = plain(8, 64, seed=2)
    model.engine["q.weight"] = bf16
    told = (
        "the learner holds mxfp8 [8, 64], the engine bf16 [8, 64]; through the exact probe "
        "8 of 8 rows differ, the first is 0"
    )
    assert judged(model).evidence == (("q.weight", told),)


def test_a_copy_in_another_grid_that_serves_the_same_values_passes() -> None:
    """An emulation kernel that dequantizes at load holds bf16 on the learner's grid."""
    model = a_model()
    model.engine["q.weight"] = {"values": values_of(model.weights["q.weight"])}
    judgement = judged(model)
    assert judgement.status is Status.PASS
    assert judgement.message == "6 weights are the learner's, 1 of them through the exact probe"


def test_another_grid_that_nobody_probed_fails() -> None:
    model = a_model()
    model.engine["q.weight"] = {"values": values_of(model.weights["q.weight"])}
    judgement = judged(model, packed_probe={})
    told = "the learner holds mxfp8 [8, 64], the engine bf16 [8, 64]"
    assert judgement.evidence == (("q.weight", told),)


def test_another_shape_fails() -> None:
    model = a_model()
    model.engine["q.weight"] = low(9, 64, seed=2)
    told = dict(judged(model).evidence)["q.weight"]
    assert told.startswith("the learner holds mxfp8 [8, 64], the engine mxfp8 [9, 64]; through")


def packed() -> Model:
    return a_model(hidden={"q.weight": "packed for the kernel", "k.weight": "packed too"})


def test_a_packed_weight_is_judged_by_its_kernel() -> None:
    model = packed()
    judgement = judged(model)
    assert judgement.message == "6 weights are the learner's, 2 of them through the exact probe"
    assert judgement.coverage == Coverage(6, 6, total_bytes(model), total_bytes(model))


def test_a_packed_weight_whose_kernel_serves_others_fails() -> None:
    model = packed()
    model.change("q.weight", "elements", (5, 0), 0x80)
    judgement = judged(model)
    told = "1 of 8 rows differ, the first is 5, seen by the exact probe"
    assert judgement.evidence == (("q.weight", told),)


def test_a_packed_weight_of_which_nothing_is_known_is_not_run() -> None:
    model = packed()
    judgement = judged(model, packed_probe={"k.weight": model.exact_probe()["k.weight"]})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.UNSUPPORTED)
    nbytes = model.learner_prints()["q.weight"].nbytes
    all_bytes = total_bytes(model)
    assert judgement.coverage == Coverage(5, 6, all_bytes - nbytes, all_bytes)
    assert parts_of(judgement) == {
        "what": "1 weight can be neither read nor probed",
        "where": "q.weight",
        "got": "packed for the kernel",
        "what to do": "let the adapter read the weight, or probe its serving path",
    }
    assert judgement.evidence == (("q.weight", "packed for the kernel"),)
    both = judged(model, packed_probe={})
    assert parts_of(both)["what"] == "2 weights can be neither read nor probed"


def test_an_unreadable_weight_without_a_reason_is_no_pass() -> None:
    model = a_model(hidden={"norm.weight": ""})
    judgement = judged(model)
    assert judgement.reason is Reason.UNSUPPORTED
    assert judgement.evidence == (("norm.weight", "the engine does not say why"),)


def test_a_probe_of_another_size_is_no_match() -> None:
    model = packed()
    probe = model.exact_probe() | {"q.weight": served("q.weight", low(4, 64))}
    told = dict(judged(model, packed_probe=probe).evidence)["q.weight"]
    assert told == "8 of 8 rows differ, the first is 0, seen by the exact probe"


def test_a_probe_says_nothing_of_a_weight_whose_values_are_not_told() -> None:
    model = a_model(hidden={"q.weight": "packed for the kernel"})
    judgement = judged(model, packed_values={})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.UNSUPPORTED)
    assert parts_of(judgement)["where"] == "q.weight"


def test_scales_alone_say_nothing_of_elements_in_the_same_grid_and_fail_in_another() -> None:
    model = a_model()
    prints = model.weight_prints()
    held = prints["q.weight"]
    assert isinstance(held, WeightPrint)
    shown = replace(held, rows={"scales": held.rows["scales"]})
    judgement = judged(model, weight_prints={**prints, "q.weight": shown}, packed_probe={})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.UNSUPPORTED)
    assert judgement.evidence == (("q.weight", "its elements are packed, and were not probed"),)
    other = replace(shown, grid="int8")
    judgement = judged(model, weight_prints={**prints, "q.weight": other}, packed_probe={})
    told = "the learner holds mxfp8 [8, 64], the engine int8 [8, 64]"
    assert judgement.evidence == (("q.weight", told),)


def test_another_shape_in_the_same_grid_fails_unprobed() -> None:
    model = a_model()
    prints = {**model.weight_prints(), "q.weight": printed("q.weight", low(4))}
    judgement = judged(model, weight_prints=prints, packed_probe={})
    told = "the learner holds mxfp8 [8, 64], the engine mxfp8 [4, 64]"
    assert judgement.evidence == (("q.weight", told),)


def test_a_failure_counts_more_than_what_is_unseen() -> None:
    model = a_model(hidden={"norm.weight": "no reason"})
    model.change("q.weight", "elements", (5, 0))
    judgement = judged(model)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    assert judgement.coverage.layers_checked == 5


def test_a_weight_that_the_engine_lacks_is_not_run() -> None:
    model = a_model()
    del model.engine["norm.weight"]
    judgement = judged(model)
    assert judgement.evidence == (("norm.weight", "the engine has none"),)
    assert judgement.coverage.layers_checked == 5


def test_a_weight_whose_learner_print_is_lost_is_not_run() -> None:
    model = a_model()
    prints = model.learner_prints()
    del prints["norm.weight"]
    judgement = judged(model, learner_prints=prints, differences=[])
    assert judgement.evidence == (("norm.weight", "the learner has none"),)


def test_a_weight_that_only_the_engine_has_is_not_compared() -> None:
    model = a_model(engine={"mtp.weight": low(seed=9)})
    judgement = judged(model)
    assert (judgement.status, judgement.coverage.layers_total) == (Status.PASS, 6)


@pytest.mark.parametrize("key", ["q.weight@rank1", "norm.weight@rank1"])
def test_a_stale_copy_on_another_rank_is_named(key: str) -> None:
    name = key.partition("@")[0]
    model = a_model()
    model.engine[key] = {part: tensor.clone() for part, tensor in model.weights[name].items()}
    assert judged(model).status is Status.PASS
    model.change(key, next(iter(model.engine[key])), (1,))
    judgement = judged(model)
    assert (judgement.status, judgement.subject) == (Status.FAIL, key)
    assert judgement.measured == 1
    assert "these rows cannot be fetched for a closer look" in judgement.message
    assert judgement.coverage.complete


def test_an_unreadable_copy_leaves_its_weight_unchecked() -> None:
    model = a_model(engine={"norm.weight@rank1": plain(64, seed=5)})
    model.hidden["norm.weight@rank1"] = "packed"
    judgement = judged(model)
    assert judgement.evidence == (("norm.weight@rank1", "packed"),)
    assert judgement.coverage.layers_checked == 5


def test_a_harmless_difference_is_harmless_in_every_copy() -> None:
    model = zero_blocks()
    model.engine["q@rank1"] = {name: tensor.clone() for name, tensor in model.engine["q"].items()}
    assert judged(model).status is Status.PASS
    model.change("q@rank1", "scales", (0, 1))
    assert judged(model).subject == "q@rank1"


def tied() -> Model:
    embedding = plain(6, 64)
    return Model(
        {"embed.weight": embedding, "lm_head.weight": embedding},
        {"embed.weight": "embedding", "lm_head.weight": "head"},
        {"lm_head.weight": "embed.weight"},
    )


def test_a_tied_head_that_the_engine_does_not_hold_apart_is_covered_by_the_embedding() -> None:
    model = tied()
    del model.engine["lm_head.weight"]
    judgement = judged(model)
    assert (judgement.status, judgement.coverage.layers_checked) == (Status.PASS, 2)
    model.change("embed.weight", "values", (2, 0))
    assert judged(model).measured == 1


def test_a_tied_head_that_the_engine_holds_apart_is_judged_by_itself() -> None:
    model = tied()
    model.change("lm_head.weight", "values", (2, 0))
    assert [name for name, _ in judged(model).evidence] == ["lm_head.weight"]


@pytest.mark.parametrize("empty", ["learner_prints", "weight_prints"])
def test_no_answer_of_a_side_is_missing_input(empty: str) -> None:
    judgement = judged(a_model(), **{empty: {}})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "one of the sides reported no weights"


def test_a_weight_with_no_elements_is_equal_to_itself() -> None:
    none: np.ndarray[Any, np.dtype[np.uint64]] = np.zeros(0, np.uint64)
    empty = WeightPrint("bias", "bf16", (0,), {"values": none}, 0)
    model = a_model()
    layer = replace(model.layers[-1], weight="bias", kind="bias", shape=(0,))
    judgement = judged(
        model,
        learner_layers=[*model.layers, layer],
        learner_prints=model.learner_prints() | {"bias": empty},
        weight_prints=model.weight_prints() | {"bias": empty},
        differences=[],
    )
    assert (judgement.status, judgement.coverage.layers_checked) == (Status.PASS, 7)


def packed_int8() -> tuple[Model, dict[str, Any]]:
    """A weight of which the engine shows its scales, and serves the rest from a packed copy."""
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(4))
    elements, scales = to_grid(weight, "int8")
    assert scales is not None
    model = Model({"q.weight": {"elements": elements, "scales": scales}})
    whole = model.learner_prints()["q.weight"]
    rows = {"scales": whole.rows["scales"].copy()}
    told = {"q.weight": replace(whole, rows=rows, nbytes=scales.nbytes)}
    return model, {"weight_prints": told, "packed_probe": model.exact_probe(), "differences": []}


def test_scales_beside_packed_elements_are_compared_and_the_rest_is_probed() -> None:
    model, given = packed_int8()
    judgement = judged(model, **given)
    assert judgement.status is Status.PASS
    assert judgement.message == "1 weight is the learner's, 1 of them through the exact probe"
    assert judgement.coverage.complete


def test_one_wrong_scale_beside_a_right_probe_is_named_by_row() -> None:
    model, given = packed_int8()
    given["weight_prints"]["q.weight"].rows["scales"][5] ^= np.uint64(1)
    judgement = judged(model, **given)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    assert "q.weight: its scales: 1 of 8 rows differ, the first is 5" in judgement.message
    without = judged(model, **{**given, "packed_probe": {}})
    assert without.status is Status.FAIL


def test_a_wrong_row_of_the_probe_beside_right_scales_is_named() -> None:
    model, given = packed_int8()
    given["packed_probe"]["q.weight"].rows["values"][2] ^= np.uint64(1)
    judgement = judged(model, **given)
    told = "q.weight: 1 of 8 rows differ, the first is 2, seen by the exact probe"
    assert told in judgement.message
    assert judgement.status is Status.FAIL


def test_right_scales_alone_are_not_enough() -> None:
    model, given = packed_int8()
    judgement = judged(model, **{**given, "packed_probe": {}})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.UNSUPPORTED)
    assert judgement.evidence == (("q.weight", "its elements are packed, and were not probed"),)
    assert judgement.coverage.layers_checked == 0
