"""C5: parameters still take what they took."""

from dataclasses import replace
from typing import Any

import pytest

from syncguard.checks.destinations import destinations
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import fails, parts_of, passes, silent, stored

TABLE = [stored("a.weight", 0x100), stored("b.bias", 0x200, kind="buffer")]


def test_parameters_that_keep_their_form_pass_wherever_they_are() -> None:
    moved = [replace(row, storage=0x900) for row in TABLE]
    judgement = destinations([*TABLE, stored("x", 1, kind="attribute")], moved)
    assert passes(judgement, 2)
    assert judgement.coverage == Coverage(2, 2, 128, 128)
    assert judgement.message == "2 parameters keep their shape and dtype"
    one = destinations(TABLE[:1], TABLE[:1])
    assert one.message == "1 parameter keeps its shape and dtype"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"shape": (64,)}, "bfloat16 [32] became bfloat16 [64]"),
        ({"dtype": "uint8"}, "bfloat16 [32] became uint8 [32]"),
    ],
)
def test_another_form_is_named(change: dict[str, Any], told: str) -> None:
    judgement = destinations(TABLE, [TABLE[0], replace(TABLE[1], **change)])
    assert fails(judgement, "b.bias")
    assert judgement.evidence == (("b.bias", told),)
    assert judgement.coverage == Coverage(2, 2, 128, 128)
    parts = parts_of(judgement)
    assert parts["what"] == "1 parameter has another form than before the sync"
    assert parts["where"] == "b.bias"
    assert parts["got"] == f"b.bias: {told}"


@pytest.mark.parametrize("rest", [TABLE[:1], [TABLE[0], replace(TABLE[1], kind="attribute")]])
def test_a_parameter_that_is_gone_is_named(rest: Any) -> None:
    assert destinations(TABLE, rest).evidence == (("b.bias", "is gone"),)


def test_all_of_them_are_named() -> None:
    judgement = destinations(TABLE, [])
    assert fails(judgement, "a.weight", measured=2)
    assert parts_of(judgement)["what"].startswith("2 parameters have another form ")
    assert parts_of(judgement)["where"] == "a.weight, b.bias"


def test_new_parameters_do_not_matter() -> None:
    assert destinations(TABLE, [*TABLE, stored("c", 0x300)]).status is Status.PASS


def test_no_parameter_is_missing_input() -> None:
    judgement = destinations([stored("x", 1, kind="attribute")], TABLE)
    assert silent(judgement, Reason.MISSING_INPUT)
    assert judgement.message == "the engine reported no parameters"
