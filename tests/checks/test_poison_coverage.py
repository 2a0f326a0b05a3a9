"""C5: no row keeps the pattern that everything was filled with before the sync."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks import Judgement
from syncguard.checks.completeness import poison_coverage
from syncguard.observations import Poisoned, Unreadable, WeightPrint
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import (
    Model,
    Tensors,
    a_model,
    is_complete,
    low,
    parts_of,
    plain,
    printed,
)

PATTERN = 0xA5


def filled(tensors: Tensors, pattern: int = PATTERN) -> Tensors:
    fill = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in fill.values():
        tensor.view(torch.uint8).fill_(pattern)
    return fill


def poisoned(model: Model, pattern: int = PATTERN, without: tuple[str, ...] = ()) -> Poisoned:
    """Everything that the engine can read, filled; some keys are left as they are."""
    prints = {
        key: printed(key.partition("@")[0], held if key in without else filled(held, pattern))
        for key, held in model.engine.items()
        if key not in model.hidden
    }
    nbytes = {held.weight: 0 for held in prints.values()}
    for held in prints.values():
        nbytes[held.weight] += held.nbytes
    return Poisoned(pattern, nbytes, prints)


def judged(model: Model, before: Poisoned | None = None, **instead: Any) -> Judgement:
    given: dict[str, Any] = {
        "learner_prints": model.learner_prints(),
        "poisoned": poisoned(model) if before is None else before,
        "weight_prints": model.weight_prints(),
    }
    return poison_coverage(**{**given, **instead})


def total_bytes(model: Model) -> int:
    return sum(held.nbytes for held in model.learner_prints().values())


@pytest.mark.parametrize("pattern", [0xA5, 0x5A])
def test_a_sync_that_writes_everything_passes(pattern: int) -> None:
    model = a_model()
    judgement = judged(model, poisoned(model, pattern))
    assert judgement.status is Status.PASS
    assert judgement.message == (
        f"6 weights were filled with 0x{pattern:02X} before the sync; none of it is left"
    )
    assert judgement.coverage == Coverage(6, 6, total_bytes(model), total_bytes(model))
    assert (judgement.measured, judgement.bound) == (0, 0)
    assert judged(Model({"q": low()})).message.startswith("1 weight was filled with 0xA5 ")


def test_a_weight_that_never_came_is_named() -> None:
    model = a_model()
    model.engine["gate.weight"] = filled(model.engine["gate.weight"])
    judgement = judged(model)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "gate.weight")
    assert (judgement.measured, judgement.bound) == (1, 0)
    assert judgement.evidence == (("gate.weight", "4 of 4 rows of its values"),)
    assert judgement.coverage.complete
    told = parts_of(judgement)
    assert told["what"] == "1 weight was not written by the sync"
    assert told["where"] == "gate.weight"
    assert told["expected"] == "no row still filled with 0xA5"
    assert told["got"] == "gate.weight: the pattern is left in 4 of 4 rows of its values"
    assert is_complete(judgement)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_any_rows_left_unwritten_are_counted(elements: set[int], scales: set[int]) -> None:
    model = a_model()
    fill = filled(model.engine["q.weight"])
    for component, rows in (("elements", elements), ("scales", scales)):
        for row in rows:
            held = model.engine["q.weight"][component].view(torch.uint8)
            held[row] = fill[component].view(torch.uint8)[row]
    told = " and ".join(
        f"{len(rows)} of 8 rows of its {component}"
        for component, rows in (("elements", elements), ("scales", scales))
        if rows
    )
    assert judged(model).evidence == ((("q.weight", told),) if told else ())
    assert judged(model).status is (Status.FAIL if told else Status.PASS)


def test_all_weights_that_are_left_are_named() -> None:
    model = a_model()
    for key in ("q.weight", "norm.weight"):
        model.engine[key] = filled(model.engine[key])
    judgement = judged(model)
    assert parts_of(judgement)["what"] == "2 weights were not written by the sync"
    assert [name for name, _ in judgement.evidence] == ["q.weight", "norm.weight"]
    assert dict(judgement.evidence)["norm.weight"] == "1 of 1 row of its values"


def test_a_row_whose_legal_value_is_the_pattern_is_no_fault() -> None:
    """That is why syncs take turns between two patterns."""
    model = a_model()
    held = model.weights["gate.weight"]["values"].view(torch.uint8)
    held[2] = PATTERN
    model.engine["gate.weight"]["values"].copy_(model.weights["gate.weight"]["values"])
    assert judged(model).status is Status.PASS
    model.engine["gate.weight"]["values"].view(torch.uint8)[1] = PATTERN
    assert judged(model).evidence == (("gate.weight", "1 of 4 rows of its values"),)


def test_wrong_values_are_not_for_this_check() -> None:
    model = a_model()
    model.engine["q.weight"] = low(8, 64, seed=77)
    assert judged(model).status is Status.PASS


def test_an_engine_that_was_not_poisoned_is_not_applicable() -> None:
    judgement = poison_coverage({}, None, {})
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.NOT_APPLICABLE)
    assert judgement.message == "the engine was not poisoned before this sync"


def test_a_weight_that_cannot_be_filled_is_not_covered() -> None:
    model = a_model(hidden={"q.weight": "packed"})
    judgement = judged(model)
    mine = model.learner_prints()["q.weight"].nbytes
    assert judgement.status is Status.PASS
    assert judgement.message.startswith("5 weights were filled")
    assert judgement.coverage == Coverage(5, 6, total_bytes(model) - mine, total_bytes(model))


@pytest.mark.parametrize("key", ["q.weight", "gate.weight"])
def test_a_weight_that_did_not_take_the_pattern_is_not_covered(key: str) -> None:
    """Poisoning that does nothing must not count as proof that the sync wrote."""
    model = a_model()
    model.engine[key] = low(8, 64, seed=9) if key == "q.weight" else plain(4, 64, seed=9)
    judgement = judged(model, poisoned(model, without=(key,)))
    assert (judgement.status, judgement.coverage.layers_checked) == (Status.PASS, 5)


def test_a_weight_of_which_nothing_was_overwritten_is_not_covered() -> None:
    model = a_model()
    before = poisoned(model)
    before.nbytes["norm.weight"] = 0
    del before.nbytes["q.weight"]
    assert judged(model, before).coverage.layers_checked == 4


def test_a_weight_of_which_a_part_was_overwritten_is_covered_in_part() -> None:
    model = a_model()
    before = poisoned(model)
    before.nbytes["q.weight"] = 100
    total = total_bytes(model)
    mine = model.learner_prints()["q.weight"].nbytes
    assert judged(model, before).coverage == Coverage(6, 6, total - mine + 100, total)


def test_copies_count_their_bytes_once_and_are_judged_each() -> None:
    model = a_model(engine={"norm.weight@rank1": plain(64, seed=5)})
    judgement = judged(model)
    assert judgement.coverage == Coverage(6, 6, total_bytes(model), total_bytes(model))
    model.engine["norm.weight@rank1"] = filled(model.engine["norm.weight@rank1"])
    assert judged(model).subject == "norm.weight@rank1"


def test_a_weight_of_the_engine_alone_that_keeps_the_pattern_is_named() -> None:
    model = a_model(engine={"mtp.weight": filled(low())})
    judgement = judged(model)
    told = "8 of 8 rows of its elements and 8 of 8 rows of its scales"
    assert judgement.evidence == (("mtp.weight", told),)
    assert judgement.coverage.layers_total == 6


def test_a_weight_whose_form_changed_is_not_covered() -> None:
    model = a_model()
    before = poisoned(model)
    model.engine["q.weight"] = plain(8, 64)
    model.engine["k.weight"] = low(8, 64)
    assert judged(model, before).coverage.layers_checked == 4


def test_a_weight_that_cannot_be_read_afterwards_is_not_covered() -> None:
    model = a_model()
    after = model.weight_prints() | {"q.weight": Unreadable("q.weight", "freed")}
    del after["k.weight"]
    assert judged(model, weight_prints=after).coverage.layers_checked == 4


def test_another_grid_of_the_learner_excuses_nothing() -> None:
    model = a_model()
    model.engine["q.weight"] = filled(plain(8, 64))
    judgement = judged(model)
    assert judgement.evidence == (("q.weight", "8 of 8 rows of its values"),)
    model.engine["q.weight"] = filled(low(4, 64))
    assert judged(model).subject == "q.weight"


def test_a_weight_without_rows_cannot_be_filled() -> None:
    model = a_model()
    before, none = poisoned(model), np.zeros(0, np.uint64)
    before.prints["bias"] = WeightPrint("bias", "bf16", (0,), {"values": none}, 0)
    before.nbytes["bias"] = 2
    after = model.weight_prints() | {"bias": before.prints["bias"]}
    judgement = judged(model, before, weight_prints=after)
    assert (judgement.status, judgement.coverage.layers_checked) == (Status.PASS, 6)


def test_nothing_that_takes_the_pattern_is_unsupported() -> None:
    model = a_model()
    model.hidden = dict.fromkeys(model.engine, "packed")
    judgement = judged(model)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.UNSUPPORTED)
    assert judgement.message == "no weight of this engine took the pattern from outside"
    assert judgement.coverage == Coverage(0, 6, 0, total_bytes(model))


def test_nothing_of_the_learner_that_takes_it_is_unsupported_too() -> None:
    model = a_model(engine={"mtp.weight": low()})
    model.hidden = {key: "packed" for key in model.engine if key != "mtp.weight"}
    judgement = judged(model)
    assert judgement.reason is Reason.UNSUPPORTED


def test_a_pattern_that_only_the_engines_own_weight_keeps_is_a_failure_all_the_same() -> None:
    model = a_model(engine={"mtp.weight": filled(low())})
    model.hidden = {key: "packed" for key in model.engine if key != "mtp.weight"}
    judgement = judged(model)
    assert (judgement.status, judgement.subject) == (Status.FAIL, "mtp.weight")
