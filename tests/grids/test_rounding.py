"""One rounding rule for each grid."""

from __future__ import annotations

import pytest
import torch

from syncguard.grids import GRIDS, canary, from_grid, quantize, to_grid
from syncguard.grids.rounding import ROUNDING


def test_every_grid_has_a_rounding_rule() -> None:
    assert ROUNDING.keys() == GRIDS.keys()


@pytest.mark.parametrize("name", GRIDS)
def test_what_comes_out_is_what_the_grid_says(name: str) -> None:
    grid = GRIDS[name]
    weight = canary()[:4].float()
    elements, scales = to_grid(weight, name)
    assert elements.dtype == grid.element_dtype
    assert elements.shape == weight.shape
    if scales is None:
        assert grid.plain
    else:
        assert scales.dtype == grid.scale_dtype
        assert scales.shape == (4, grid.blocks(weight.shape[1]))


@pytest.mark.parametrize("name", sorted(GRIDS.keys() - {"int8"}))  # whose scale shrinks again
def test_a_grid_point_stays_where_it_is(name: str) -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    once = from_grid(*to_grid(weight, name), name, torch.float32)
    assert torch.equal(from_grid(*to_grid(once, name), name, torch.float32), once)
    assert torch.equal(once, weight) == (name == "fp32")


def test_mxfp8_is_quantize() -> None:
    weight = canary()
    for own, other in zip(to_grid(weight, "mxfp8"), quantize(weight), strict=True):
        assert own is not None
        assert torch.equal(own.view(torch.uint8), other.view(torch.uint8))


def test_unknown_grid_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match=r"to_grid: there is no grid 'mxfp4'.*bf16, fp16, fp32, int8, mx"
    ):
        to_grid(torch.zeros(1, 32), "mxfp4")
    with pytest.raises(ValueError, match=r"from_grid: there is no grid 'nvfp4'"):
        from_grid(torch.zeros(1, 32), None, "nvfp4", torch.float32)


@pytest.mark.parametrize("name", [name for name, grid in GRIDS.items() if not grid.plain])
def test_missing_scales_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"grid '{name}' needs scales, got None.*torch\.[fu]"):
        from_grid(torch.zeros(1, 32, dtype=torch.uint8), None, name, torch.float32)
