"""C5: parameters still take what they took."""

from dataclasses import replace
from typing import Any

import pytest

from syncguard.checks.destinations import destinations
from syncguard.verdict import Reason
from tests.checks.factories import (
    fails,
    passes,
    silent,
    stored,
)

TABLE = [stored("a.weight", 0x100), stored("b.bias", 0x200, kind="buffer")]


def test_parameters_that_keep_their_form_pass_wherever_they_are() -> None:
    moved = [replace(row, storage=0x900) for row in TABLE]
    judgement = destinations([*TABLE, stored("x", 1, kind="attribute")], moved)
    assert passes(judgement, 2)
    assert judgement.coverage.bytes_checked == judgement.coverage.bytes_total == 128


@pytest.mark.parametrize("change", [{"shape": (64,)}, {"dtype": "uint8"}])
def test_another_form_is_named(change: dict[str, Any]) -> None:
    judgement = destinations(TABLE, [TABLE[0], replace(TABLE[1], **change)])
    assert fails(judgement, "b.bias")
    assert "bfloat16 [32] became " in judgement.evidence[0][1]


@pytest.mark.parametrize("rest", [TABLE[:1], [TABLE[0], replace(TABLE[1], kind="attribute")]])
def test_a_parameter_that_is_gone_is_named(rest: Any) -> None:
    assert destinations(TABLE, rest).evidence == (("b.bias", "is gone"),)


def test_no_parameter_is_missing_input() -> None:
    assert silent(destinations([], TABLE), Reason.MISSING_INPUT)
