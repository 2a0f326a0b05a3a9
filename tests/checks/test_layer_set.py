"""C1 judged on layer tables alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from syncguard.checks import Judgement
from syncguard.checks.layer_set import layer_set
from syncguard.observations import EngineLayer, LearnerLayer
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import a_learner_layer, an_engine_layer, is_complete, parts_of

GRIDS = st.sampled_from(["mxfp8", "bf16"])
TABLE = {"head.weight": "bf16", "k.weight": "mxfp8", "q.weight": "mxfp8"}


def learner(table: dict[str, str], kind: str = "linear") -> list[LearnerLayer]:
    return [a_learner_layer(weight, grid, kind) for weight, grid in table.items()]


def engine(table: dict[str, str]) -> list[EngineLayer]:
    return [an_engine_layer(weight, grid) for weight, grid in table.items()]


def judged(mine: dict[str, str], theirs: dict[str, str]) -> Judgement:
    return layer_set(learner(mine), engine(theirs))


def test_the_same_layers_pass_with_full_coverage() -> None:
    judgement = judged(TABLE, TABLE)
    assert judgement.status is Status.PASS
    assert judgement.coverage == Coverage(3, 3)
    assert judgement.message == "2 of 3 layers are quantized on both sides, the same ones"
    assert (judgement.measured, judgement.bound, judgement.evidence) == (0, 0, ())


def test_one_layer_is_told_in_the_singular() -> None:
    one = {"q.weight": "mxfp8"}
    assert judged(one, one).message == "1 of 1 layer is quantized on both sides, the same ones"


def test_a_layer_left_unquantized_is_named() -> None:
    judgement = judged(TABLE, {**TABLE, "q.weight": "bf16"})
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    assert (judgement.measured, judgement.bound) == (1, 0)
    assert judgement.evidence == (("q.weight", "learner mxfp8, engine bf16"),)
    assert parts_of(judgement) == {
        "what": "1 layer differs between learner and engine",
        "where": "q.weight",
        "expected": "the grids of the learner's forward: q.weight mxfp8",
        "got": "the engine leaves unquantized: q.weight (live methods: Bf16Method)",
        "likely cause": "an exclusion pattern matches more than was meant",
        "what to do": "compare the engine's exclusion list with the learner's filter; ask the "
        "live modules, not the configuration, after every change of either",
    }


def test_a_quantized_head_is_named() -> None:
    judgement = judged(TABLE, {**TABLE, "head.weight": "mxfp8"})
    assert (judgement.status, judgement.subject) == (Status.FAIL, "head.weight")
    told = parts_of(judgement)
    assert told["got"] == "the engine quantizes: head.weight (live methods: Mxfp8Method)"
    assert told["likely cause"] == "lm_head, embedding or router is missing from the exclusions"


def test_both_kinds_at_once_are_told_apart() -> None:
    swapped = {"head.weight": "mxfp8", "k.weight": "mxfp8", "q.weight": "bf16"}
    told = parts_of(judged(TABLE, swapped))
    assert told["what"] == "2 layers differ between learner and engine"
    assert told["where"] == "head.weight, q.weight"
    assert told["expected"].endswith("head.weight bf16, q.weight mxfp8")
    assert told["got"] == (
        "the engine leaves unquantized: q.weight; the engine quantizes: head.weight "
        "(live methods: Bf16Method, Mxfp8Method)"
    )


def test_causes_of_what_is_wrong_are_all_told() -> None:
    told = parts_of(judged(TABLE, {"head.weight": "mxfp8", "k.weight": "bf16", "q_proj": "mxfp8"}))
    assert told["likely cause"] == (
        "an exclusion pattern matches more than was meant; lm_head, embedding or router is "
        "missing from the exclusions; names of the two sides do not map to each other"
    )
    told = parts_of(judged(TABLE, {**TABLE, "odd.weight": "mxfp8"}))
    assert told["likely cause"] == "names of the two sides do not map to each other"


def test_an_unknown_method_is_no_match() -> None:
    odd = "unknown to syncguard (Fp8LinearMethod)"
    judgement = judged(TABLE, {**TABLE, "k.weight": odd})
    assert judgement.evidence == (("k.weight", f"learner mxfp8, engine {odd}"),)


def test_a_layer_that_the_engine_lacks_fails() -> None:
    judgement = judged(TABLE, {"head.weight": "bf16", "k.weight": "mxfp8"})
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q.weight")
    assert judgement.coverage == Coverage(2, 3)
    assert judgement.evidence == (("q.weight", "the engine has no such layer"),)
    told = parts_of(judgement)
    assert told["got"] == "the engine has no: q.weight"
    assert told["expected"] == "the grids of the learner's forward: every layer present"
    assert told["likely cause"] == "names of the two sides do not map to each other"
    assert is_complete(judgement)


def test_a_layer_that_the_learner_lacks_fails() -> None:
    judgement = judged(TABLE, {**TABLE, "mtp.weight": "mxfp8"})
    assert (judgement.status, judgement.subject) == (Status.FAIL, "mtp.weight")
    assert judgement.coverage == Coverage(3, 4)
    assert judgement.evidence == (("mtp.weight", "the learner has no such layer"),)
    assert parts_of(judgement)["got"] == "the learner has no: mtp.weight"


def test_evidence_names_all_offenders_of_all_kinds_and_the_subject_is_the_first() -> None:
    judgement = judged(
        {"b.weight": "mxfp8", "c.weight": "mxfp8"}, {"b.weight": "bf16", "a.weight": "bf16"}
    )
    assert judgement.measured == 3
    assert judgement.subject == "a.weight"
    assert [name for name, _ in judgement.evidence] == ["b.weight", "c.weight", "a.weight"]
    assert parts_of(judgement)["where"] == "a.weight, b.weight, c.weight"


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_one_deviating_rank_is_found_whatever_its_number(bad_rank: int) -> None:
    rows = [
        an_engine_layer(w, "bf16" if (w, rank) == ("q.weight", bad_rank) else grid, rank=rank)
        for rank in (0, 1)
        for w, grid in TABLE.items()
    ]
    judgement = layer_set(learner(TABLE), rows)
    assert judgement.evidence == (("q.weight", f"learner mxfp8, engine bf16 on rank {bad_rank}"),)


def test_ranks_that_deviate_in_different_ways_are_all_told() -> None:
    grids = ["mxfp8", "fp16", "bf16", "bf16"]
    rows = [an_engine_layer("q.weight", grid, rank=rank) for rank, grid in enumerate(grids)]
    judgement = layer_set(learner({"q.weight": "mxfp8"}), rows)
    told = "learner mxfp8, engine bf16 on ranks 2, 3 and fp16 on rank 1"
    assert judgement.evidence == (("q.weight", told),)


def test_ranks_that_agree_with_the_learner_pass() -> None:
    rows = [an_engine_layer(w, grid, rank=rank) for rank in (0, 1) for w, grid in TABLE.items()]
    judgement = layer_set(learner(TABLE), rows)
    assert (judgement.status, judgement.coverage) == (Status.PASS, Coverage(3, 3))


def test_parts_of_a_fused_layer_are_judged_one_by_one() -> None:
    row = an_engine_layer("qkv.weight", "mxfp8", parts=("q.weight", "k.weight"))
    judgement = layer_set(learner({"q.weight": "mxfp8", "k.weight": "bf16"}), [row])
    assert judgement.subject == "k.weight"
    assert judgement.measured == 1


@pytest.mark.parametrize("other", ["fp32", "fp16"])
def test_a_router_in_another_format_without_scales_is_no_quantization(other: str) -> None:
    """What bf16 values are held in is for C2 to say: they may be exact in float32."""
    mine = learner({"q.weight": "mxfp8"}) + learner({"gate.weight": "bf16"}, "router")
    judgement = layer_set(mine, engine({"q.weight": "mxfp8", "gate.weight": other}))
    assert judgement.status is Status.PASS
    told = f"learner bf16, engine {other}; neither is quantized"
    assert judgement.evidence == (("gate.weight", told),)


def test_a_tied_head_may_live_under_the_name_of_the_embedding() -> None:
    mine = [
        a_learner_layer("embed.weight", "bf16", "embedding"),
        LearnerLayer("lm_head.weight", "bf16", "head", (8, 64), "embed.weight"),
    ]
    judgement = layer_set(mine, engine({"embed.weight": "bf16"}))
    assert (judgement.status, judgement.coverage) == (Status.PASS, Coverage(2, 2))
    assert layer_set(mine, engine({"embed.weight": "mxfp8"})).measured == 2


def test_a_tied_head_with_a_layer_of_its_own_is_judged_by_it() -> None:
    mine = [
        a_learner_layer("embed.weight", "bf16", "embedding"),
        LearnerLayer("lm_head.weight", "bf16", "head", (8, 64), "embed.weight"),
    ]
    judgement = layer_set(mine, engine({"embed.weight": "bf16", "lm_head.weight": "mxfp8"}))
    assert (judgement.status, judgement.subject) == (Status.FAIL, "lm_head.weight")


@pytest.mark.parametrize("kind", ["norm", "bias", "buffer"])
def test_vectors_need_no_layer_but_count_if_there_is_one(kind: str) -> None:
    mine = learner({"q.weight": "mxfp8"}) + learner({"x": "bf16"}, kind)
    without = layer_set(mine, engine({"q.weight": "mxfp8"}))
    assert (without.status, without.coverage) == (Status.PASS, Coverage(1, 1))
    assert layer_set(mine, engine({"q.weight": "mxfp8", "x": "bf16"})).status is Status.PASS
    assert layer_set(mine, engine({"q.weight": "mxfp8", "x": "mxfp8"})).subject == "x"


@pytest.mark.parametrize("kind", ["linear", "head", "embedding", "expert", "router"])
def test_every_kind_of_matrix_is_required(kind: str) -> None:
    judgement = layer_set(
        learner({"q.weight": "mxfp8"}) + learner({"x.weight": "bf16"}, kind),
        engine({"q.weight": "mxfp8"}),
    )
    assert judgement.subject == "x.weight"


def test_no_answer_of_a_side_is_missing_input() -> None:
    for mine, theirs, side in (({}, TABLE, "learner"), (TABLE, {}, "engine")):
        judgement = judged(mine, theirs)
        assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.MISSING_INPUT)
        assert judgement.message == f"the {side} reported no layers"


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcdefg"), st.tuples(GRIDS, GRIDS), min_size=1))
def test_it_is_symmetric_and_finds_exactly_the_differences(
    grids: dict[str, tuple[str, str]],
) -> None:
    mine = {weight: pair[0] for weight, pair in grids.items()}
    theirs = {weight: pair[1] for weight, pair in grids.items()}
    there, back = judged(mine, theirs), judged(theirs, mine)
    differing = sorted(weight for weight, (a, b) in grids.items() if a != b)
    for judgement in (there, back):
        assert (judgement.status is Status.FAIL) == bool(differing)
        assert [name for name, _ in judgement.evidence] == differing
        assert judgement.measured == len(differing)
        assert judgement.coverage.complete


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcde"), GRIDS, min_size=1),
    st.dictionaries(st.sampled_from("cdefg"), GRIDS, min_size=1),
)
def test_layers_of_one_side_only_are_all_named(
    mine: dict[str, str], theirs: dict[str, str]
) -> None:
    judgement = judged(mine, theirs)
    alone = mine.keys() ^ theirs.keys()
    assert alone <= {name for name, _ in judgement.evidence}
    assert judgement.coverage == Coverage(
        len(mine.keys() & theirs.keys()), len(mine.keys() | theirs.keys())
    )
