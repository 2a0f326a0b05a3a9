import json

import pytest

from syncguard.catalogue import KINDS, explain
from syncguard.checks import CHECKS
from syncguard.conditions import CONDITIONS
from syncguard.errors import UsageError
from syncguard.faults import FAULTS
from syncguard.grids import GRIDS
from syncguard.sides import ENGINES
from tests.campaign.conftest import Plant, plant
from tests.campaign.planted import MUTE, STALE
from tests.commands import Run

__all__ = ["plant"]

ALL = {
    "conditions": CONDITIONS,
    "checks": CHECKS,
    "faults": FAULTS,
    "engines": ("stub", "vllm", "sglang"),
    "grids": GRIDS,
}


def test_every_engine_is_listed() -> None:
    assert {entry["name"] for entry in KINDS["engines"]()} == set(ENGINES)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_listed(run: Run, plant: Plant, kind: str) -> None:
    plant(STALE, MUTE)
    ran = run("list", kind, "--json")
    assert ran.code == 0
    value = json.loads(ran.out)
    assert value["schema"] == "syncguard.list/1"
    assert [entry["name"] for entry in value[kind]] == list(ALL[kind])
    shown = run("list", kind)
    assert shown.code == 0
    for entry in value[kind]:
        assert entry["name"] in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_a_fault_is_listed_with_what_it_breaks(run: Run, plant: Plant) -> None:
    plant(STALE)
    (entry,) = json.loads(run("list", "faults", "--json").out)["faults"]
    assert entry == {
        "name": STALE,
        "breaks": ["C3"],
        "claimed_by": ["exact-probe", "re-derivation"],
        "seam": "post_process",
        "met": ["F3", "W14"],
        "silent": True,
        "summary": "The twin that the kernel reads is never <rebuilt> & stays as it was.",
    }


def test_no_faults_are_an_empty_list(run: Run, plant: Plant) -> None:
    plant()
    assert run("list", "faults").code == 0


def test_an_unknown_kind_is_wrong_usage(run: Run) -> None:
    ran = run("list", "bugs")
    assert ran.code == 2
    assert "'bugs' is not one of" in " ".join(ran.err.replace("│", "").split())


def parts(name: str) -> dict[str, str]:
    return dict(explain(name).parts)


def test_a_condition_is_explained(plant: Plant) -> None:
    plant(STALE)
    for name in ("C3", "c3", "Derived State"):
        found = explain(name)
        assert (found.kind, found.title) == ("condition", "C3 derived state")
    told = parts("C3")
    assert told["what it says"] == CONDITIONS["C3"].statement
    assert "exact-probe" in told["checked by"]
    assert told["broken by"] == STALE
    assert {"how it shows", "what to do"} <= told.keys()


@pytest.mark.parametrize("name", CONDITIONS)
def test_every_condition_says_how_it_shows_and_what_to_do(name: str) -> None:
    assert {"what it says", "how it shows", "checked by", "what to do"} <= parts(name).keys()


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_is_explained(name: str) -> None:
    told = parts(name)
    assert told["what it asks"].startswith(CHECKS[name].summary)
    assert "\n " not in told["what it asks"]


def test_a_check_names_the_faults_that_it_claims(plant: Plant) -> None:
    plant(STALE, MUTE)
    assert parts("exact-probe")["claims"] == STALE
    assert "claims" not in parts("ledger")
    assert "for comparison" in parts("published-random-probe")["reference"]


def test_a_fault_is_explained(plant: Plant) -> None:
    plant(STALE)
    told = parts(STALE)
    assert told == {
        "what it is": "The twin that the kernel reads is never <rebuilt> & stays as it was.\n"
        'Seen by <script>alert("nobody")</script>.',
        "how it shows": "silently: no error, and normal metrics",
        "breaks": "C3 derived state",
        "seen by": "exact-probe, re-derivation",
        "armed at": "seam post_process, on linear_kernel=twin",
        "what to do": parts("C3")["what to do"],
        "met as": "F3, W14",
        "threads": "https://example.org/thread?a=1&b=2",
    }


def test_a_published_failure_names_its_faults(plant: Plant) -> None:
    plant(STALE)
    told = explain("w14")
    assert told.title == "W14, a fault met in the wild"
    assert explain("F3").title == "F3, a published failure"
    assert f"syncguard explain {STALE}" in dict(told.parts)["more"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("exact-prob", "'exact-probe'"), ("planted-stall", "'planted-stale'"), ("C33", "'c3'")],
)
def test_an_unknown_name_is_met_with_near_ones(plant: Plant, name: str, meant: str) -> None:
    plant(STALE)
    with pytest.raises(UsageError, match="there is no condition, check or fault") as caught:
        explain(name)
    assert meant in str(caught.value)


def test_the_command_explains(run: Run, plant: Plant) -> None:
    plant(STALE)
    ran = run("explain", STALE)
    assert ran.code == 0
    assert ran.out.startswith(f"{STALE}, a fault that breaks C3\n")
    assert "<script>" in ran.out  # text, not markup
    wrong = run("explain", "nothing-like-it")
    assert wrong.code == 2
    assert "what to do: `syncguard list conditions`" in wrong.err
