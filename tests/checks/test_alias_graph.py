"""C4: which tensors share storage."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks.storage_identity import alias_graph
from syncguard.observations import StoredTensor
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import is_complete, parts_of, stored

TIED = [stored("embed", 0x100), stored("head", 0x100), stored("norm", 0x200)]
partitions = st.lists(st.integers(1, 3), min_size=4, max_size=4)


def groups(storages: list[int]) -> list[set[int]]:
    return [{j for j, other in enumerate(storages) if other == own} for own in storages]


def table(storages: list[int]) -> list[StoredTensor]:
    return [stored(str(index), 0x100 * storage) for index, storage in enumerate(storages)]


def test_the_same_sharing_passes_wherever_it_is() -> None:
    judgement = alias_graph(TIED, [replace(row, storage=row.storage + 0x1000) for row in TIED])
    assert judgement.status is Status.PASS
    assert judgement.message == "tensors share storage as before"
    assert judgement.coverage == Coverage(3, 3)
    assert (judgement.measured, judgement.bound) == (0, 0)


@settings(deadline=None)
@given(partitions, partitions)
def test_exactly_the_tensors_whose_company_changed_are_named(
    before: list[int], after: list[int]
) -> None:
    judgement = alias_graph(table(before), table(after))
    pairs = zip(groups(before), groups(after), strict=True)
    wanted = [str(index) for index, (one, other) in enumerate(pairs) if one != other]
    assert [path for path, _ in judgement.evidence] == wanted
    assert judgement.status is (Status.FAIL if wanted else Status.PASS)
    assert judgement.measured == len(wanted)


def test_a_tie_that_is_broken_names_both_ends() -> None:
    judgement = alias_graph(TIED, [TIED[0], replace(TIED[1], storage=0x300), TIED[2]])
    assert (judgement.status, judgement.subject) == (Status.FAIL, "embed")
    assert judgement.evidence == (
        ("embed", "shared with head before, with nothing now"),
        ("head", "shared with embed before, with nothing now"),
    )
    assert (judgement.measured, judgement.bound) == (2, 0)
    told = parts_of(judgement)
    assert told["what"] == "2 tensors share storage with others than before"
    assert told["where"] == "embed, head"
    assert told["got"] == "embed: shared with head before, with nothing now"
    assert is_complete(judgement)


def test_two_tensors_that_newly_share_a_buffer_are_named() -> None:
    judgement = alias_graph(TIED, [*TIED[:2], replace(TIED[2], storage=0x100)])
    assert judgement.evidence[2] == ("norm", "shared with nothing before, with embed, head now")


def test_tensors_of_one_side_only_are_not_covered() -> None:
    before = [*TIED, stored("old", 0x100)]
    after = [*TIED, stored("new", 0x200)]
    judgement = alias_graph(before, after)
    assert judgement.status is Status.PASS
    assert judgement.coverage == Coverage(3, 5)


def test_what_has_no_bytes_or_no_storage_shares_nothing() -> None:
    before = [*TIED, stored("freed", 0x100, 0), stored("wrapper", 0)]
    after = [*TIED, stored("freed", 0x200, 0), stored("wrapper", 0)]
    assert alias_graph(before, after).status is Status.PASS
    twice = [*TIED, stored("one", 0), stored("other", 0)]
    assert alias_graph(TIED + twice[3:4], twice).status is Status.PASS
    apart = [*TIED, stored("one", 0), stored("other", 0x900)]
    assert alias_graph(twice, apart).status is Status.PASS


def test_tensors_of_closures_are_code() -> None:
    closure = stored("run<held>", 0x900, kind="closure")
    after = [*TIED, replace(closure, storage=0x100)]
    assert alias_graph([*TIED, closure], after).status is Status.PASS


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([], TIED, "the engine reported no tensors"),
        (TIED, [], "the engine reported no tensors"),
        (TIED[:1], TIED[1:], "no tensor is where one was before the sync"),
    ],
)
def test_nothing_to_compare_is_missing_input(
    before: list[StoredTensor], after: list[StoredTensor], told: str
) -> None:
    judgement = alias_graph(before, after)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == told
