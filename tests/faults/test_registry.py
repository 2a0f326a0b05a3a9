"""The registry refuses what would prove nothing, and tells what it refuses."""

from collections.abc import Iterator
from typing import Any

import pytest

from syncguard.faults import FAULTS, Fault, World, fault
from syncguard.faults.registry import fault_table
from syncguard.seams import Seam
from tests.faults.helpers import make_world

pytestmark = pytest.mark.usefixtures("scratch_registry")

_OPTIONS: dict[str, Any] = {"breaks": "C2", "claimed_by": "weight-bytes", "seam": "export"}


def _arm(world: World, site: str) -> Iterator[None]:
    """What it does.

    How it shows.
    """
    world.fire()
    yield


def _registered(**options: Any) -> Fault:
    fault("a-fault", **{**_OPTIONS, **options})(_arm)
    return FAULTS["a-fault"]


def test_lists_are_separated_by_blanks() -> None:
    found = _registered(breaks="C2 C5", claimed_by="ledger session", met="F3 W14")
    assert found.breaks == ("C2", "C5")
    assert found.claimed_by == ("ledger", "session")
    assert found.met == ("F3", "W14")


def test_no_claim_and_no_meeting_are_empty() -> None:
    found = _registered(claimed_by="")
    assert (found.claimed_by, found.met, found.links) == ((), (), ())
    assert (found.silent, found.late, found.equivalent) == (True, False, "")


def test_docstring_is_explanation_and_its_first_line_summary() -> None:
    found = _registered()
    assert found.summary == "What it does."
    assert found.explanation == "What it does.\n\nHow it shows."


def test_the_generator_function_is_returned() -> None:
    assert fault("a-fault", **_OPTIONS)(_arm) is _arm


@pytest.mark.parametrize("breaks", ["C0", "C14", "C2 c5", "C1,C2"])
def test_unknown_condition(breaks: str) -> None:
    with pytest.raises(ValueError, match="'a-fault': unknown condition or seam"):
        _registered(breaks=breaks)


def test_unknown_seam() -> None:
    with pytest.raises(ValueError, match=r"unknown condition or seam \['exports'\]"):
        _registered(seam="exports")


def test_taken_name() -> None:
    _registered()
    with pytest.raises(ValueError, match="'a-fault': the name is taken"):
        _registered()


def test_missing_docstring() -> None:
    def undocumented(world: World, site: str) -> Iterator[None]:
        yield

    with pytest.raises(ValueError, match=r"'a-fault': .* the docstring is missing"):
        fault("a-fault", **_OPTIONS)(undocumented)
    assert "a-fault" not in FAULTS


def test_registry_is_read_only() -> None:
    with pytest.raises(TypeError):
        FAULTS["a-fault"] = None  # type: ignore[index]


def test_topology_is_read_only() -> None:
    given = {"layers": 1}
    found = _registered(topology=given)
    given["layers"] = 9
    assert dict(found.topology) == {"layers": 1}
    with pytest.raises(TypeError):
        found.topology["layers"] = 2  # type: ignore[index]


def test_sites_are_the_seams() -> None:
    found = _registered(seam="process")
    world = make_world(found)
    assert found.sites_in(world) == list(world.seams()["process"])


def test_sites_are_chosen() -> None:
    found = _registered(seam="process", sites=lambda site: site.endswith("o_proj"))
    wanted = [f"model.layers.{layer}.self_attn.o_proj" for layer in (0, 1)]
    assert found.sites_in(make_world(found)) == wanted


def test_sites_of_their_own_are_chosen_too() -> None:
    found = _registered(at=lambda world: ["one", "two", "three"], sites=lambda site: "o" in site)
    assert found.sites_in(make_world(found)) == ["one", "two"]


def test_a_world_without_the_seam_has_no_sites() -> None:
    found = _registered(at=lambda world: ["one"])
    bare = World(object, object)
    assert found.sites_in(bare) == []


def test_armed_while_the_context_lasts() -> None:
    ended: list[str] = []

    def arm(world: World, site: str) -> Iterator[None]:
        """Documented."""
        world.fire()
        try:
            yield
        finally:
            ended.append(site)

    fault("a-fault", **_OPTIONS)(arm)
    world = make_world(FAULTS["a-fault"])
    with FAULTS["a-fault"].armed(world, "learner"):
        assert (world.fired, ended) == (1, [])
    assert ended == ["learner"]
    with pytest.raises(ZeroDivisionError), FAULTS["a-fault"].armed(world, "learner"):
        raise ZeroDivisionError
    assert ended == ["learner"] * 2


@pytest.mark.parametrize("site", ["nowhere", ""])
def test_unknown_site(site: str) -> None:
    found = _registered()
    with pytest.raises(KeyError, match=f"'a-fault' has no site '{site}' here"):
        found.armed(make_world(found), site)


def test_a_site_that_was_not_chosen_is_unknown() -> None:
    found = _registered(sites=lambda site: False)
    with pytest.raises(KeyError, match="has no site 'learner' here"):
        found.armed(make_world(found), "learner")


def test_table_registers_a_row_each() -> None:
    seen: list[tuple[int, str]] = []

    def make_arm(number: int) -> Any:
        def arm(world: World, site: str) -> Iterator[None]:
            seen.append((number, site))
            yield

        return arm

    rows = {
        "first": {"what": "One.", "number": 1, "claimed_by": "ledger"},
        "second": {"what": "Two.", "number": 2, "shows": "Otherwise."},
    }
    fault_table(rows, make_arm, shows="Alike.", **_OPTIONS)
    first, second = FAULTS["first"], FAULTS["second"]
    assert (first.explanation, second.explanation) == ("One.\n\nAlike.", "Two.\n\nOtherwise.")
    assert (first.claimed_by, second.claimed_by) == (("ledger",), ("weight-bytes",))
    world = make_world(first)
    for each in (second, first):
        with each.armed(world, "learner"):
            pass
    assert seen == [(2, "learner"), (1, "learner")]


def test_a_seam_is_found_at_any_side() -> None:
    world = make_world(_registered())
    assert isinstance(world.seam("export", "learner"), Seam)
    assert isinstance(world.seam("flush", "engine"), Seam)
    assert isinstance(world.seam("check", "ledger"), Seam)
    with pytest.raises(KeyError):
        world.seam("flush", "learner")
