"""C2 by the canary: one tensor that tells quantizers apart."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from syncguard.checks.canary import quantizer_canary
from syncguard.grids import canary, dequantize, quantize
from syncguard.observations import QuantizedCanary
from syncguard.verdict import Reason, Status
from tests.checks.factories import is_complete, parts_of


@cache
def side(rule: str = "round_up") -> QuantizedCanary:
    elements, scales = quantize(canary(), rule=rule)
    return QuantizedCanary(elements, scales, dequantize(elements, scales))


def changed(component: str, index: tuple[int, int], bits: int = 1) -> QuantizedCanary:
    tensor = getattr(side(), component).clone()
    tensor.view(torch.uint8)[index] ^= bits
    return replace(side(), **{component: tensor})


def block_of(value: int) -> tuple[int, int]:
    """Row and column of a scale with some value."""
    found = (side().scales == value).nonzero()[0]
    return int(found[0]), int(found[1])


def test_equal_quantizers_pass() -> None:
    judgement = quantizer_canary(True, side(), side())
    tiny = int((side().scales == 0).sum())
    assert judgement.status is Status.PASS
    assert judgement.message == (
        f"learner, engine and kernel agree on {32768 - tiny} blocks; {tiny} blocks of the "
        "smallest scale were not compared"
    )
    coverage = judgement.coverage
    assert (coverage.layers_checked, coverage.layers_total) == (1, 1)
    assert coverage.bytes_checked == coverage.bytes_total == 32768 * 33
    assert (judgement.measured, judgement.bound) == (0, 0)


def test_a_kernel_that_was_not_asked_is_not_claimed() -> None:
    for mine, theirs in (
        (side(), replace(side(), served=None)),
        (replace(side(), served=None), side()),
    ):
        told = quantizer_canary(True, mine, theirs).message
        assert told.startswith("learner, engine agree on ")


@pytest.mark.parametrize("rule", ["floor", "even", "nearest", "ceil"])
def test_another_scale_rule_is_named(rule: str) -> None:
    judgement = quantizer_canary(True, side(), side(rule))
    assert judgement.status is Status.FAIL
    assert judgement.subject == "the engine's quantizer"
    assert (judgement.measured or 0) > 1000
    told = parts_of(judgement)
    assert told["what"] == "learner and engine quantize by different rules"
    assert f"the learner follows round_up; the engine follows {rule})" in told["got"]
    assert is_complete(judgement)
    assert judgement.bound == 0


@pytest.mark.parametrize(("component", "column"), [("elements", 1), ("scales", 32)])
def test_one_byte_of_a_lasting_block_fails(component: str, column: int) -> None:
    row, block = block_of(127)
    engine = changed(component, (row, block * 32 // column), 0x01)
    judgement = quantizer_canary(True, side(), engine)
    assert (judgement.subject, judgement.measured) == ("the engine's quantizer", 1)
    assert judgement.evidence == (("the engine's quantizer", "1 blocks"),)
    assert "1 of 32768 blocks differ (the learner follows round_up" in judgement.message
    follows = "the engine follows round_up" in judgement.message
    assert follows == (component == "elements")


@pytest.mark.parametrize("component", ["elements", "scales"])
def test_blocks_of_the_smallest_scale_may_differ(component: str) -> None:
    row, block = block_of(0)
    engine = changed(component, (row, block * 32 if component == "elements" else block))
    assert quantizer_canary(True, side(), engine).status is Status.PASS


def test_an_unknown_rule_is_left_unnamed() -> None:
    odd = replace(side(), scales=side().scales + 1)
    judgement = quantizer_canary(True, side(), odd)
    assert "(the learner follows round_up)" in judgement.message
    judgement = quantizer_canary(True, odd, replace(odd, scales=odd.scales + 1))
    assert parts_of(judgement)["got"].endswith(" of 32768 blocks differ")


@pytest.mark.parametrize("value", [5.0, torch.nan])
def test_a_kernel_that_computes_otherwise_is_named(value: float) -> None:
    assert side().served is not None
    served = side().served.clone()  # type: ignore[union-attr]
    row, block = block_of(127)
    served[row, block * 32 + 3] = value
    judgement = quantizer_canary(True, side(), replace(side(), served=served))
    assert judgement.subject == "the engine's kernel"
    assert judgement.evidence == (("the engine's kernel", "1 blocks"),)
    assert is_complete(judgement)


def test_a_kernel_that_flushes_subnormals_passes() -> None:
    served = side().served.clone()  # type: ignore[union-attr]
    served[served.abs() < torch.finfo(served.dtype).smallest_normal] = 0
    assert quantizer_canary(True, side(), replace(side(), served=served)).status is Status.PASS
    back = quantizer_canary(True, replace(side(), served=served), side())
    assert back.status is Status.PASS


def test_a_kernel_that_flushes_the_smallest_normal_number_is_named() -> None:
    row, block = block_of(127)
    wanted = side().served.clone()  # type: ignore[union-attr]
    wanted[row, block * 32] = torch.finfo(wanted.dtype).smallest_normal
    served = wanted.clone()
    served[row, block * 32] = 0
    judgement = quantizer_canary(
        True, replace(side(), served=wanted), replace(side(), served=served)
    )
    assert judgement.measured == 1


def test_rows_that_hold_an_infinity_prove_nothing_of_a_kernel() -> None:
    """The largest maxima round up to it, and zero times infinity spoils a product's row."""
    wanted = side().served.clone()  # type: ignore[union-attr]
    wanted[100, 7] = torch.inf
    learner = replace(side(), served=wanted)
    served = wanted.clone()
    served[100] = torch.nan
    assert quantizer_canary(True, learner, replace(side(), served=served)).status is Status.PASS
    served[101, 0] = 5.0
    assert quantizer_canary(True, learner, replace(side(), served=served)).measured == 1


def test_both_instruments_are_told() -> None:
    row, block = block_of(127)
    engine = changed("scales", (row, block))
    served = side().served.clone()  # type: ignore[union-attr]
    served[row, block * 32] *= 2
    judgement = quantizer_canary(True, side(), replace(engine, served=served))
    names = ["the engine's quantizer", "the engine's kernel"]
    assert [name for name, _ in judgement.evidence] == names


@pytest.mark.parametrize(
    ("first", "learner", "engine", "told"),
    [
        (False, True, True, "the quantizers were compared at the first sync"),
        (True, False, True, "the learner quantizes no weights"),
        (True, True, False, "the engine quantizes no weights"),
    ],
)
def test_nothing_to_compare_is_not_applicable(
    first: bool, learner: bool, engine: bool, told: str
) -> None:
    judgement = quantizer_canary(first, side() if learner else None, side() if engine else None)
    assert (judgement.status, judgement.reason) == (Status.NOT_RUN, Reason.NOT_APPLICABLE)
    assert judgement.message == told
