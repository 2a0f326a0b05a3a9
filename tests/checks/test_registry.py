"""Checks are found by name, and each says what it needs."""

import inspect
import re

import pytest

from syncguard.checks import CHECKS, Check, Judgement
from syncguard.checks.judgement import passed
from syncguard.checks.registry import check
from syncguard.conditions import CONDITIONS
from syncguard.observing import OBSERVERS
from syncguard.verdict import Coverage


def test_names_are_their_keys_and_speak_of_known_conditions() -> None:
    assert all(name == each.name for name, each in CHECKS.items())
    assert {each.condition for each in CHECKS.values()} <= CONDITIONS.keys()
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", name) for name in CHECKS)


def test_every_condition_has_a_check_of_its_own() -> None:
    """C7 has the runner's besides."""
    assert {each.condition for each in CHECKS.values() if not each.reference} == set(CONDITIONS)


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_every_need_has_an_observer(name: str) -> None:
    assert set(CHECKS[name].needs) <= set(OBSERVERS)
    assert CHECKS[name].needs


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_every_check_explains_itself(name: str) -> None:
    each = CHECKS[name]
    assert each.summary.endswith(".")
    assert each.explanation.startswith(each.summary)
    assert each.explanation == inspect.getdoc(each.judge)


def answer(engine_layers: object, storage: object) -> Judgement:
    """Say yes.

    Whatever is asked.
    """
    return passed("yes", Coverage(1, 1))


@pytest.fixture
def registered() -> object:
    """The name of a check that the test may register."""
    from syncguard.checks import registry

    yield "test-only"
    registry._CHECKS.pop("test-only", None)


def test_a_function_becomes_a_check_and_stays_a_function(registered: str) -> None:
    assert check(registered, "C6")(answer) is answer
    assert CHECKS[registered] == Check(
        registered, "C6", answer, ("engine_layers", "storage"), "Say yes.", reference=False
    )
    assert CHECKS[registered].explanation == "Say yes.\n\nWhatever is asked."


def test_without_a_docstring_the_summary_explains() -> None:
    bare = Check("bare", "C6", lambda: passed("", Coverage(1, 1)), (), "Say yes.")
    assert bare.explanation == "Say yes."


def test_a_reference_says_so(registered: str) -> None:
    check(registered, "C6", reference=True)(answer)
    assert CHECKS[registered].reference


def test_a_name_is_given_once(registered: str) -> None:
    check(registered, "C6")(answer)
    with pytest.raises(ValueError, match="'test-only': the name is taken or the docstring"):
        check(registered, "C6")(answer)


def test_an_unknown_condition_is_refused() -> None:
    with pytest.raises(ValueError, match="check 'x': unknown condition 'C99'"):
        check("x", "C99")


def test_a_check_without_a_docstring_is_refused() -> None:
    with pytest.raises(ValueError, match=r"check 'x': .*docstring is missing"):
        check("x", "C1")(lambda storage: passed("", Coverage(1, 1)))
    assert "x" not in CHECKS
