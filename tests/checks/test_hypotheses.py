"""A reason is told only if it gives the engine's bytes exactly."""

from collections.abc import Callable

import pytest
import torch

from syncguard.checks.hypotheses import reason_for
from syncguard.grids import SCALE_RULES, quantize, to_grid
from tests.checks.factories import Tensors

ROWS = (1, 40)
RULES = [name for name in SCALE_RULES if name != "round_up"]


def source(rows: int = 64) -> torch.Tensor:
    # Mantissas all over, so that rules and formats differ somewhere in every row.
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, 64, generator=generator).bfloat16()


def grid(weight: torch.Tensor, rule: str = "round_up") -> Tensors:
    elements, scales = quantize(weight[list(ROWS)], rule=rule)
    return {"elements": elements, "scales": scales}


def values(weight: torch.Tensor) -> Tensors:
    return {"values": weight[list(ROWS)]}


@pytest.mark.parametrize("rule", RULES)
def test_another_scale_rule_is_named_with_its_users(rule: str) -> None:
    elements, scales = quantize(source(), rule=rule)
    right, _ = quantize(source())
    rows = (elements != right).any(1).nonzero()[:8, 0].tolist()
    assert len(rows) == 8
    told = reason_for(source(), rows, {"elements": elements[rows], "scales": scales[rows]})
    assert f"scales by the rule {rule!r} ({SCALE_RULES[rule].used_by})" in told.split(" or ")
    assert "learner" not in told


def test_square_blocks_are_named() -> None:
    elements, scales = quantize(source())
    halves = scales[:32], scales[32:]
    scales = torch.cat([half.amax(0, keepdim=True).expand(32, -1) for half in halves])
    rows = list(ROWS)
    told = reason_for(source(), ROWS, {"elements": elements[rows], "scales": scales[rows]})
    assert told == "scales of blocks of 32 x 32, as Transformer Engine has them for weights in 2D"


@pytest.mark.parametrize("held", [grid, values])
def test_a_transposed_square_is_named(held: Callable[[torch.Tensor], Tensors]) -> None:
    told = reason_for(source(), ROWS, held(source().mT.contiguous()))
    assert told == "the learner's weight, transposed"


@pytest.mark.parametrize("held", [grid, values])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_rounding_on_the_way_is_named(
    held: Callable[[torch.Tensor], Tensors], dtype: torch.dtype
) -> None:
    tiny = source() * 2.0**-20  # below float16's normal numbers
    tiny[:, 0] = 1
    told = reason_for(tiny, ROWS, held(tiny.to(dtype).bfloat16()))
    assert told == f"the learner's weight, rounded to {str(dtype).removeprefix('torch.')}"


@pytest.mark.parametrize("held", [grid, values])
def test_what_nothing_explains_has_no_reason(held: Callable[[torch.Tensor], Tensors]) -> None:
    assert reason_for(source(), ROWS, held(source() + 1)) == ""
    almost = held(source().mT.contiguous())
    next(iter(almost.values())).view(torch.uint8)[0, 0] ^= 1
    assert reason_for(source(), ROWS, almost) == ""
    assert reason_for(source(32), (1, 2), {"scales": torch.ones(2, 2)}) == ""


def test_what_was_exported_and_not_used_is_named_alone() -> None:
    """Half precision holds these weights too, which says nothing then."""
    for held in (grid, values):
        told = reason_for(source(), ROWS, held(source()))
        assert told == "what the learner exported, which its forward does not use"


def test_a_weight_in_int8_is_tried_by_the_rule_of_int8() -> None:
    elements, scales = to_grid(source().mT.contiguous()[list(ROWS)], "int8")
    assert scales is not None
    engine = {"elements": elements, "scales": scales}
    assert reason_for(source(), ROWS, engine) == "the learner's weight, transposed"
    other = {"elements": elements, "scales": scales * 2}
    assert reason_for(source(), ROWS, other) == ""


def test_all_that_fits_is_told() -> None:
    tiny = source() * 2.0**-40  # zero in both narrow formats
    told = reason_for(tiny, ROWS, values(torch.zeros_like(tiny)))
    rounded = "the learner's weight, rounded to"
    assert told == f"{rounded} float16 or {rounded} float8_e4m3fn"


def test_rows_beyond_the_columns_are_not_looked_up_there() -> None:
    assert reason_for(source(96), (90,), {"values": source()[:1]}) == ""


def test_no_square_is_tried_where_there_is_none() -> None:
    wide = source(48)
    assert reason_for(wide, ROWS, values(wide + 1)) == ""
