"""C2 by values: does a difference of bytes touch the policy?"""

from typing import Any

import pytest
import torch

from syncguard.checks import Judgement
from syncguard.checks.weight_grid import weight_values
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import Model, a_model, is_complete, low, plain, values_of


def judged(model: Model, **instead: Any) -> Judgement:
    given: dict[str, Any] = {
        "learner_layers": model.layers,
        "learner_prints": model.learner_prints(),
        "weight_prints": model.weight_prints(),
        "differences": model.differences(),
    }
    return weight_values(**{**given, **instead})


def same_values_otherwise(model: Model, key: str) -> None:
    """Halve all elements of one block and raise its scale, which is exact for these values."""
    for held in (model.weights[key], model.engine[key]):
        values = held["elements"].float()
        values[2, :32] = torch.tensor([1.0, -2.0, 4.0, 0.5]).repeat(8)
        held["elements"].copy_(values.to(torch.float8_e4m3fn))
    held = model.engine[key]
    halves = held["elements"].float()
    halves[2, :32] /= 2
    held["elements"].copy_(halves.to(torch.float8_e4m3fn))
    held["scales"][2, 0] += 1


def test_equal_weights_pass() -> None:
    model = a_model()
    judgement = judged(model)
    nbytes = sum(held.nbytes for held in model.learner_prints().values())
    assert judgement.status is Status.PASS
    assert judgement.message == "6 weights hold the learner's values"
    assert judgement.coverage == Coverage(6, 6, nbytes, nbytes)
    assert (judgement.measured, judgement.bound) == (0, 0)
    assert judged(Model({"q": low()})).message == "1 weight holds the learner's values"


def test_the_same_values_in_another_encoding_pass_and_are_counted() -> None:
    model = a_model()
    same_values_otherwise(model, "q.weight")
    judgement = judged(model)
    assert judgement.status is Status.PASS
    assert judgement.message.endswith("; 1 differ in encoding only")


def test_another_value_fails_and_is_named() -> None:
    model = a_model()
    model.change("q.weight", "elements", (5, 9), 0x80)
    judgement = judged(model)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    assert (judgement.measured, judgement.bound) == (1, 0)
    assert is_complete(judgement)
    told = (
        "1 of 8 rows differ, the first is 5: "
        "elements differ under the same scales (1 element of the sampled rows)"
    )
    assert judgement.evidence == (("q.weight", told),)
    assert judgement.coverage.complete


def test_both_at_once_name_only_what_touches_the_policy() -> None:
    model = a_model()
    same_values_otherwise(model, "q.weight")
    model.change("norm.weight", "values", (0,))
    model.change("k.weight", "elements", (0, 0), 0x80)
    assert [name for name, _ in judged(model).evidence] == ["k.weight", "norm.weight"]


@pytest.mark.parametrize("form", ["hidden", "other grid", "missing"])
def test_what_cannot_be_compared_is_not_covered(form: str) -> None:
    model = a_model()
    if form == "hidden":
        model.hidden["q.weight"] = "packed"
    elif form == "missing":
        del model.engine["q.weight"]
    else:
        model.engine["q.weight"] = {"values": values_of(model.weights["q.weight"])}
    judgement = judged(model)
    nbytes = sum(held.nbytes for held in model.learner_prints().values())
    mine = model.learner_prints()["q.weight"].nbytes
    assert judgement.status is Status.PASS
    assert judgement.message == "5 weights hold the learner's values"
    assert judgement.coverage == Coverage(5, 6, nbytes - mine, nbytes)


def test_a_weight_counts_as_covered_only_with_all_its_copies() -> None:
    model = a_model(engine={"norm.weight@rank1": plain(64, seed=5)})
    assert judged(model).coverage.layers_checked == 6
    model.hidden["norm.weight@rank1"] = "packed"
    assert judged(model).coverage.layers_checked == 5


def test_a_wrong_copy_is_named() -> None:
    model = a_model(engine={"norm.weight@rank1": plain(64, seed=55)})
    assert judged(model).subject == "norm.weight@rank1"


def test_a_tied_weight_is_covered_by_the_other_name() -> None:
    model = a_model(tied={"lm_head.weight": "embed.weight"})
    model.weights["lm_head.weight"] = model.weights["embed.weight"]
    del model.engine["lm_head.weight"]
    assert judged(model).coverage.layers_checked == 6


def test_nothing_readable_is_unsupported() -> None:
    model = a_model()
    model.hidden = dict.fromkeys(model.engine, "packed")
    judgement = judged(model)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.UNSUPPORTED)
    assert judgement.message == "no weight of this engine can be read in the learner's grid"


def test_no_answer_of_the_learner_is_missing_input() -> None:
    judgement = judged(a_model(), learner_prints={})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "the learner reported no weights"
