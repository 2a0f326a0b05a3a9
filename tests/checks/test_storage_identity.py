"""C4: what a forward reads stays where it is."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks import Judgement
from syncguard.checks.storage_identity import storage_identity
from syncguard.observations import GraphReads, StoredTensor
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import is_complete, parts_of, stored

TABLE = [stored("a.weight", 0x100), stored("b.scales", 0x200, 32), stored("c.cache", 0x300, 16)]
READ = {"a.weight", "b.scales"}
MOVES: dict[str, tuple[Any, str]] = {
    "storage": (0xABC0, "storage 0x100 became 0xabc0"),
    "offset": (8, "offset 0 became 8"),
    "shape": ((4, 8), "shape (32,) became (4, 8)"),
    "stride": ((2,), "stride (1,) became (2,)"),
    "dtype": ("float16", "dtype bfloat16 became float16"),
}


def judged(
    before: list[StoredTensor],
    after: list[StoredTensor],
    read: set[str] | None = None,
    captured: bool = False,
) -> Judgement:
    paths = READ if read is None else read
    return storage_identity(before, after, GraphReads(frozenset(paths), captured))


def moved(path: str, **fields: Any) -> list[StoredTensor]:
    return [replace(row, **fields) if row.path == path else row for row in TABLE]


def test_what_stays_passes_with_full_coverage() -> None:
    judgement = judged(TABLE, list(TABLE))
    assert judgement.status is Status.PASS
    assert judgement.coverage == Coverage(2, 2, 96, 96)
    assert (judgement.measured, judgement.bound) == (0, 0)
    assert judgement.message == (
        "2 tensors that a forward reads stayed in place; 3 tensors are reachable"
    )
    one = judged(TABLE[:1], TABLE[:1], {"a.weight"})
    assert one.message == "1 tensor that a forward reads stayed in place; 1 tensor is reachable"


@pytest.mark.parametrize("what", MOVES)
def test_any_change_of_place_of_a_read_tensor_fails(what: str) -> None:
    value, told = MOVES[what]
    judgement = judged(TABLE, moved("a.weight", **{what: value}))
    assert (judgement.status, judgement.subject) == (Status.FAIL, "a.weight")
    assert judgement.evidence == (("a.weight", told),)
    assert (judgement.measured, judgement.bound) == (1, 0)
    assert judgement.coverage.complete
    assert parts_of(judgement) == {
        "what": "the sync moved 1 tensor that a forward reads",
        "where": "a.weight",
        "expected": "storage, offset, shape, stride and dtype as before the sync",
        "got": f"a.weight: {told}",
        "likely cause": "post-processing made a new tensor and bound it in place of the old one, "
        "which captured graphs go on reading",
        "what to do": "copy the new values into the old storage",
    }


@pytest.mark.parametrize("what", MOVES)
def test_no_change_of_an_unread_tensor_matters(what: str) -> None:
    assert judged(TABLE, moved("c.cache", **{what: MOVES[what][0]})).status is Status.PASS


@settings(deadline=None)
@given(st.sets(st.sampled_from([row.path for row in TABLE])), st.sets(st.sampled_from(list(MOVES))))
def test_the_read_ones_among_the_moved_are_named(paths: set[str], what: set[str]) -> None:
    fields: dict[str, Any] = {name: MOVES[name][0] for name in what}
    after = [replace(row, **fields) if row.path in paths else row for row in TABLE]
    judgement = judged(TABLE, after)
    wanted = sorted(paths & READ) if what else []
    assert [path for path, _ in judgement.evidence] == wanted
    assert judgement.status is (Status.FAIL if wanted else Status.PASS)
    assert judgement.measured == len(wanted)


def test_several_changes_of_one_tensor_are_all_told() -> None:
    judgement = judged(TABLE, moved("b.scales", storage=0x999, shape=(8,)))
    told = "storage 0x200 became 0x999; shape (16,) became (8,)"
    assert judgement.evidence == (("b.scales", told),)


def test_a_read_tensor_that_is_gone_fails() -> None:
    judgement = judged(TABLE, TABLE[1:])
    assert judgement.evidence == (("a.weight", "is gone"),)
    assert is_complete(judgement)


def test_two_moved_tensors_are_told_in_the_plural() -> None:
    judgement = judged(TABLE, [replace(row, storage=1) for row in TABLE])
    assert parts_of(judgement)["what"] == "the sync moved 2 tensors that a forward reads"
    assert parts_of(judgement)["where"] == "a.weight, b.scales"


def test_new_tensors_do_not_matter() -> None:
    assert judged(TABLE, [*TABLE, stored("new", 0x400)]).status is Status.PASS


@pytest.mark.parametrize(("captured", "status"), [(False, Status.PASS), (True, Status.FAIL)])
def test_tensors_of_closures_count_where_a_graph_is_captured(
    captured: bool, status: Status
) -> None:
    closure = stored("head.run<packed>", 0x500, kind="closure")
    before, after = [*TABLE, closure], [*TABLE, replace(closure, storage=0x600)]
    judgement = judged(before, after, {*READ, closure.path}, captured)
    assert judgement.status is status
    assert judgement.coverage.layers_total == (3 if captured else 2)


def test_a_tensor_without_bytes_has_no_place() -> None:
    """A freed parameter: its address is zero, or whatever an empty allocation gives."""
    freed = stored("q.weight", 0, 0)
    judgement = judged([*TABLE, freed], [*TABLE, replace(freed, storage=0x10)], {*READ, "q.weight"})
    assert (judgement.status, judgement.coverage.layers_checked) == (Status.PASS, 2)


def test_a_tensor_that_an_earlier_sync_took_away_is_not_covered() -> None:
    judgement = judged(TABLE[1:], TABLE[1:])
    assert judgement.status is Status.PASS
    assert judgement.coverage == Coverage(1, 2, 32, 32)


@pytest.mark.parametrize("read", [set[str](), {"elsewhere"}])
def test_no_read_tensor_is_missing_input(read: set[str]) -> None:
    judgement = judged(TABLE, TABLE, read)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "no tensor was seen to be read by a forward"
