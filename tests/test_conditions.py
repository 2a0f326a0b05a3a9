"""The conditions as data."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from syncguard.conditions import CONDITIONS, CORE_CONDITIONS, Condition


def test_conditions_are_numbered_in_order_and_known_by_their_number() -> None:
    assert list(CONDITIONS) == [f"C{number}" for number in range(1, 14)]
    assert all(name == condition.id for name, condition in CONDITIONS.items())


def test_the_seven_published_ones_come_first() -> None:
    assert tuple(CONDITIONS.values())[:7] == CORE_CONDITIONS
    assert [condition.core for condition in CONDITIONS.values()] == [True] * 7 + [False] * 6
    assert [condition.name for condition in CORE_CONDITIONS] == [
        "layer set",
        "weight grid",
        "derived state",
        "storage identity",
        "completeness",
        "output sanity",
        "observability",
    ]


def test_names_are_different_and_statements_are_sentences() -> None:
    assert len({condition.name for condition in CONDITIONS.values()}) == len(CONDITIONS)
    assert all(condition.statement.endswith(".") for condition in CONDITIONS.values())
    assert all(condition.statement[0].isupper() for condition in CONDITIONS.values())


def test_they_cannot_be_changed() -> None:
    mapping: Any = CONDITIONS
    with pytest.raises(TypeError):
        mapping["C1"] = CONDITIONS["C2"]
    with pytest.raises(FrozenInstanceError):
        CONDITIONS["C1"].name = "other"  # type: ignore[misc]


def test_a_new_one_is_a_core_condition_unless_it_says_otherwise() -> None:
    assert Condition("C99", "name", "Statement.").core
