"""C3 by deriving again."""

from typing import Any

from syncguard.checks.derived_state import rederivation
from syncguard.observations import Rederivation
from syncguard.verdict import Coverage, Reason, Status
from tests.checks.factories import is_complete, parts_of


def derived(path: str, differing: int = 0, **fields: Any) -> Rederivation:
    return Rederivation(**{
        "path": path, "parts": ("q", "k"), "differing": differing, "nbytes": 512, **fields
    })  # fmt: skip


def test_equal_copies_pass_and_each_weight_counts_once() -> None:
    judgement = rederivation(
        [derived("qkv.scales"), derived("qkv.shuffled"), derived("o", parts=("o",))]
    )
    assert judgement.status is Status.PASS
    assert judgement.message == "3 derived tensors equal what canonical tensors give"
    assert judgement.coverage == Coverage(3, 3, 1536, 1536)
    assert (judgement.measured, judgement.bound) == (0, 0)
    one = rederivation([derived("qkv.scales")])
    assert one.message == "1 derived tensor equals what canonical tensors give"


def test_a_stale_copy_is_named() -> None:
    judgement = rederivation([derived("o.scales"), derived("qkv.scales", 7)])
    assert (judgement.status, judgement.subject) == (Status.FAIL, "q")
    assert (judgement.measured, judgement.bound) == (7, 0)
    assert judgement.evidence == (("qkv.scales", "7 bytes"),)
    told = parts_of(judgement)
    assert told["what"] == "1 derived tensor is not what canonical tensors give"
    assert told["where"] == "qkv.scales"
    assert told["got"] == "qkv.scales: 7 of 512 bytes differ"
    assert is_complete(judgement)
    assert judgement.coverage.complete


def test_all_stale_copies_are_named_and_their_bytes_added() -> None:
    judgement = rederivation([derived("a", 1), derived("b"), derived("c", 512, parts=())])
    assert judgement.measured == 513
    assert judgement.evidence == (("a", "1 byte"), ("c", "512 bytes"))
    told = parts_of(judgement)
    assert told["what"] == "2 derived tensors are not what canonical tensors give"
    assert told["where"] == "a, c"


def test_a_copy_of_no_known_weight_is_named_by_its_path() -> None:
    assert rederivation([derived("workspace", 1, parts=())]).subject == "workspace"


def test_an_engine_without_readable_copies_is_not_applicable() -> None:
    judgement = rederivation([])
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.NOT_APPLICABLE)
    assert judgement.message == "the engine keeps no derived tensors that can be read"
