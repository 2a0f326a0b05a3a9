"""C5: arrivals and writes against the manifest."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks import Judgement
from syncguard.checks.completeness import ledger
from syncguard.observations import EngineLayer, Loaded, SyncRecord
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import an_engine_layer, is_complete, low, parts_of, printed, written

NAMES = ("a", "b", "c", "d")
PRINTS = {name: printed(name, low(4, 32, seed=n)) for n, name in enumerate(NAMES)}
NBYTES = sum(held.nbytes for held in PRINTS.values())


def judged(
    buckets: list[tuple[str, ...]],
    loaded: list[Loaded],
    manifest: dict[str, str] | None = None,
    layers: list[EngineLayer] | None = None,
    prints: dict[str, Any] | None = None,
) -> Judgement:
    return ledger(
        {name: name for name in NAMES} if manifest is None else manifest,
        [] if layers is None else layers,
        PRINTS if prints is None else prints,
        SyncRecord(1, "1", buckets=buckets, loaded=loaded),
    )


def arrived(names: list[str]) -> list[tuple[str, ...]]:
    return [(name,) for name in names]


def test_each_weight_once_passes_with_full_coverage() -> None:
    judgement = judged([("a", "b"), ("c", "d")], [written(name) for name in NAMES])
    assert judgement.status is Status.PASS
    assert judgement.message == "4 weights arrived and were written exactly once, in 2 buckets"
    assert judgement.coverage == Coverage(4, 4, NBYTES, NBYTES)
    assert (judgement.measured, judgement.bound) == (0, 0)


def test_one_weight_is_told_in_the_singular() -> None:
    judgement = judged([("a",)], [written("a")], {"a": "a"})
    assert judgement.message == "1 weight arrived and was written exactly once, in 1 bucket"
    assert judgement.coverage == Coverage(1, 1, PRINTS["a"].nbytes, PRINTS["a"].nbytes)


@settings(deadline=None)
@given(st.permutations(NAMES), st.permutations(NAMES), st.sets(st.integers(1, 3)))
def test_order_and_cuts_of_buckets_do_not_matter(
    arrivals: list[str], writes: list[str], cuts: set[int]
) -> None:
    bounds = [0, *sorted(cuts), len(NAMES)]
    buckets = [tuple(arrivals[a:b]) for a, b in pairwise(bounds)]
    assert judged(buckets, [written(name) for name in writes]).status is Status.PASS


@settings(deadline=None)
@given(st.lists(st.sampled_from([*NAMES, "x"])), st.lists(st.sampled_from(NAMES)))
def test_any_other_multiset_of_arrivals_or_writes_names_the_offenders(
    arrivals: list[str], writes: list[str]
) -> None:
    judgement = judged(arrived(arrivals) or [()], [written(name) for name in writes])
    came, wrote = Counter(arrivals), Counter(writes)
    wanted = {name for name in NAMES if (came[name], wrote[name]) != (1, 1)}
    wanted |= {"x"} & set(arrivals)
    assert {name for name, _ in judgement.evidence} == wanted
    assert judgement.status is (Status.FAIL if wanted else Status.PASS)
    assert judgement.measured == len(wanted)
    if wanted:
        assert judgement.subject in wanted
        assert judgement.subject in judgement.message


@pytest.mark.parametrize(
    ("arrivals", "writes", "told"),
    [
        ("abc", "abc", "never arrived"),
        ("abcdd", "abcd", "arrived 2 times"),
        ("abcddd", "abcddd", "arrived 3 times"),
        ("abcd", "abc", "arrived, but no loader took it"),
        ("abcd", "abcdd", "engine.d on rank 0 was written 2 times"),
    ],
)
def test_what_went_wrong_with_one_weight_is_told(arrivals: str, writes: str, told: str) -> None:
    judgement = judged(arrived(list(arrivals)), [written(name) for name in writes])
    assert (judgement.status, judgement.subject) == (Status.FAIL, "d")
    assert judgement.evidence == (("d", told),)
    assert (judgement.measured, judgement.bound) == (1, 0)
    assert judgement.coverage.complete
    parts = parts_of(judgement)
    assert parts["what"] == "1 weight was not written exactly once"
    assert parts["where"] == "d"
    assert parts["got"] == f"d: {told}"
    assert is_complete(judgement)


def test_a_name_that_nobody_expects_is_named() -> None:
    judgement = judged(arrived([*NAMES, "model.d"]), [written(name) for name in NAMES])
    told = "arrived, but the learner has no such weight"
    assert judgement.evidence == (("model.d", told),)


def test_a_renamed_weight_is_named_on_both_ends() -> None:
    judgement = judged(arrived(["a", "b", "c", "D"]), [written(name) for name in "abcD"])
    assert [name for name, _ in judgement.evidence] == ["d", "D"]
    assert parts_of(judgement)["what"] == "2 weights were not written exactly once"


def test_a_shard_that_comes_twice_hides_none_that_never_comes() -> None:
    """vLLM's layer-wise reload counts elements, and these add up."""
    shard = {"q": "a", "k": "b", "v": "c"}
    rows = [written(shard[part], parameter="qkv.weight", shard=part) for part in "qvv"]
    judgement = judged(arrived(["a", "c", "c", "d"]), [*rows, written("d")])
    assert dict(judgement.evidence) == {"b": "never arrived", "c": "arrived 2 times"}


def test_a_weight_that_lands_in_the_place_of_another_is_named_with_it() -> None:
    rows = [
        written(name, parameter="qkv.weight", shard=part)
        for name, part in zip("abc", "qkk", strict=True)
    ]
    judgement = judged(arrived(list(NAMES)), [*rows, written("d")])
    told = "qkv.weight shard k on rank 0 was written 2 times, by b, c"
    assert dict(judgement.evidence) == {"b": told, "c": told}


@pytest.mark.parametrize("fields", [{"shard": "k"}, {"expert": 1}, {"rank": 1}, {"parameter": "x"}])
def test_places_differ_by_parameter_shard_expert_and_rank(fields: dict[str, Any]) -> None:
    """One name may fill several places, as copies of an expert on one rank do."""
    rows = [written(name) for name in NAMES]
    assert judged(arrived(list(NAMES)), [*rows, replace(rows[0], **fields)]).status is Status.PASS


def test_an_expert_is_told_by_its_number_from_zero() -> None:
    rows = [written(name) for name in "bcd"] + 2 * [written("a", parameter="w13", expert=0)]
    told = "w13 expert 0 on rank 0 was written 2 times"
    assert judged(arrived(list(NAMES)), rows).evidence == (("a", told),)


def test_a_rank_that_holds_a_layer_and_takes_none_of_it_is_named() -> None:
    layers = [an_engine_layer("a", rank=rank) for rank in (0, 1, 2)]
    both = [written(name, rank=rank) for name in NAMES for rank in (0, 1, 2)]
    assert judged(arrived(list(NAMES)), both, layers=layers).status is Status.PASS
    some = [row for row in both if (row.weight, row.rank) not in {("a", 1), ("a", 2)}]
    judgement = judged(arrived(list(NAMES)), some, layers=layers)
    assert judgement.evidence == (("a", "arrived, but no loader took it on rank 1, 2"),)


def test_a_rank_that_holds_no_part_need_not_take_it() -> None:
    """Experts and pipeline stages live on some ranks only."""
    layers = [an_engine_layer("a", rank=0), an_engine_layer("b", rank=1)]
    rows = [written("a"), written("b", rank=1), written("c"), written("d")]
    assert judged(arrived(list(NAMES)), rows, layers=layers).status is Status.PASS


def test_scales_travel_under_names_of_their_own_and_weights_count_once() -> None:
    manifest = {name + suffix: name for name in NAMES for suffix in ("", "_scale")}
    names = list(manifest)
    judgement = judged(arrived(names), [written(name) for name in names], manifest)
    assert judgement.status is Status.PASS
    assert judgement.message.startswith("8 weights arrived")
    assert judgement.coverage == Coverage(4, 4, NBYTES, NBYTES)
    without = [name for name in names if name != "c_scale"]
    judgement = judged(arrived(without), [written(name) for name in without], manifest)
    assert judgement.evidence == (("c_scale", "never arrived"),)


def test_a_scale_must_reach_every_rank_that_holds_its_weight() -> None:
    layers = [an_engine_layer("a", rank=rank) for rank in (0, 1)]
    rows = [written("a"), written("a", rank=1), written("a_scale")]
    judgement = judged(arrived(["a", "a_scale"]), rows, {"a": "a", "a_scale": "a"}, layers)
    assert judgement.evidence == (("a_scale", "arrived, but no loader took it on rank 1"),)


def test_a_weight_without_a_print_covers_no_bytes() -> None:
    few = {name: held for name, held in PRINTS.items() if name != "a"}
    judgement = judged(arrived(list(NAMES)), [written(name) for name in NAMES], prints=few)
    nbytes = NBYTES - PRINTS["a"].nbytes
    assert judgement.coverage == Coverage(4, 4, nbytes, nbytes)


def test_weights_that_do_not_travel_cover_no_bytes() -> None:
    """A tied head is sent under the name of the embedding."""
    judgement = judged(arrived(["a"]), [written("a")], {"a": "a"})
    assert judgement.coverage.bytes_total == PRINTS["a"].nbytes


@pytest.mark.parametrize(("manifest", "buckets"), [({}, [("a",)]), ({"a": "a"}, [])])
def test_nothing_expected_or_arrived_is_missing_input(
    manifest: dict[str, str], buckets: list[tuple[str, ...]]
) -> None:
    judgement = judged(buckets, [], manifest)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
    assert judgement.message == "no weight was expected, or no bucket arrived"


def test_empty_buckets_are_a_failure() -> None:
    assert judged([()], []).measured == 4
