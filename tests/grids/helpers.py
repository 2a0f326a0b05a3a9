"""Shared by the tests of this folder: backends, bit patterns and the specification as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from syncguard.grids import reference
from syncguard.grids.formats import SOURCE_FORMATS

if TYPE_CHECKING:
    from syncguard.grids.mxfp8 import Backend

DATA = Path(__file__).parents[1] / "data"

_WORDS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}

LARGEST_BF16 = 0x7F7F


def _has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


INSTALLED: list[Backend] = ["torch", "numba"] if _has_numba() else ["torch"]

both_backends = pytest.mark.parametrize(
    "backend",
    [
        pytest.param("torch"),
        pytest.param("numba", marks=pytest.mark.skipif(not _has_numba(), reason="needs numba")),
    ],
)


def from_bits(bits: object, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Make a float tensor from unsigned bit patterns: nested lists, an array or a tensor."""
    wide = torch.as_tensor(np.asarray(bits).astype(np.int64))
    return wide.to(_WORDS[dtype]).view(dtype)


def to_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the unsigned bit patterns of a float tensor as int64."""
    word = _WORDS[tensor.dtype]
    return tensor.view(word).long() & ((1 << (8 * word.itemsize)) - 1)


def as_bytes(elements: torch.Tensor) -> torch.Tensor:
    return elements.view(torch.uint8)


def specified(weight: torch.Tensor, rule: str = "round_up") -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize [B, 32] with the scalar reference, to uint8 elements [B, 32] and scales [B, 1]."""
    source = SOURCE_FORMATS[weight.dtype]
    blocks = [reference.quantize_block(b, source, rule) for b in to_bits(weight).tolist()]
    elements = torch.tensor([codes for _, codes in blocks], dtype=torch.uint8)
    return elements, torch.tensor([[scale] for scale, _ in blocks], dtype=torch.uint8)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2**exponents as float64, exactly."""
    return torch.ldexp(torch.ones(exponents.shape, dtype=torch.float64), exponents.int())


def assert_same_bytes(
    got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Compare (elements, scales) byte for byte and show the first differing block."""
    for name, own, other in zip(("elements", "scales"), got, expected, strict=True):
        differ = (as_bytes(own) != as_bytes(other)).nonzero()
        first = differ[0].tolist() if len(differ) else None
        assert first is None, (
            f"{len(differ)} {name} differ, first at {first}: "
            f"{as_bytes(own)[tuple(first)]} instead of {as_bytes(other)[tuple(first)]}"
        )


def blocks_with_every_maximum(position: int, seed: int = 0) -> torch.Tensor:
    """Return bf16 [32639, 32]: every positive finite maximum at `position`, the rest below it."""
    generator = torch.Generator().manual_seed(seed + position)
    maximum = torch.arange(1, LARGEST_BF16 + 1)[:, None]
    below = torch.randint(0, 18 << 7, (LARGEST_BF16, 32), generator=generator)
    magnitude = (maximum - below).clamp(min=0)
    magnitude[:, position] = maximum[:, 0]
    sign = torch.randint(0, 2, magnitude.shape, generator=generator) << 15
    return from_bits(magnitude | sign)
