"""A small weight that tells MXFP8 quantizers apart.

Random weights exercise a scale rule only where maxima happen to fall: the ties at `448 * 2**k`, on
which several backends depend on an approximate logarithm or reciprocal, are 0.6 % of blocks, and
subnormal blocks never occur. Push this tensor through a backend once per engine start and compare
bytes with `quantize(canary())`.
"""

from __future__ import annotations

import functools

import torch

from syncguard.grids.formats import BF16, E4M3, FP32, MXFP8

_BLOCKS_PER_ROW = 128
_ROWS = 256

# Step of a multiplicative hash (2**32 over the golden ratio): cheap and equal everywhere, unlike
# a random generator, whose stream may change between torch versions.
_HASH = 2654435761


@functools.lru_cache(maxsize=1)
def canary() -> torch.Tensor:
    """Return the canary: `[256, 4096]` bfloat16 on the CPU, 2 MiB, always the same.

    Every call returns the same tensor: do not change it.

    Its 32,768 blocks of 32 are, in order:

    * 32,639 blocks, one for every positive finite bfloat16 maximum in increasing order, subnormal
      maxima and all `448 * 2**k` included. The maximum wanders over the 32 positions; the other
      elements lie up to 20 binades below it, with mixed signs, down to zeros and subnormals;
    * 126 blocks with maximum `448 * 2**k`, k from -60 to 65, whose other elements are exact ties
      between neighbouring E4M3 values, all 126 of them;
    * a block of +0, one of -0, and one of both.

    It holds no infinity and no NaN: implementations differ there by design.
    """
    # Engines change the default device and dtype while they load a model, so name both.
    with torch.device("cpu"):
        zero = torch.zeros(1, MXFP8.block_size, dtype=torch.int32)
        zeros = torch.cat([zero, zero | BF16.sign_bit, zero | BF16.sign_bit * _odd_lanes()])
        blocks = torch.cat([_every_maximum(), _element_ties(), zeros]).to(torch.int16)
    return blocks.view(torch.bfloat16).reshape(_ROWS, _BLOCKS_PER_ROW * MXFP8.block_size)


def _odd_lanes() -> torch.Tensor:
    return torch.arange(MXFP8.block_size, dtype=torch.int32) & 1


def _every_maximum() -> torch.Tensor:
    """Return bfloat16 bits [32639, 32], block i with maximum i + 1 (as bits)."""
    maximum = torch.arange(1, BF16.largest + 1)[:, None]
    lane = torch.arange(MXFP8.block_size)
    hashed = ((maximum * MXFP8.block_size + lane) * _HASH) % (1 << 32)
    binades = 20 << BF16.mantissa_bits
    magnitude = (maximum - hashed // 64 % binades).clamp(min=0)
    magnitude = torch.where(lane == maximum % MXFP8.block_size, maximum, magnitude)
    sign = (hashed >> 31) * BF16.sign_bit
    return (magnitude | sign).int()


def _element_ties() -> torch.Tensor:
    """Return bfloat16 bits [126, 32] of blocks full of E4M3 ties."""
    codes = [significand * 2.0**exponent for significand, exponent in map(E4M3.split, range(0x7F))]
    values = torch.tensor(codes, dtype=torch.float32)
    ties = (values[1:] + values[:-1]) / 2
    block = torch.arange(len(ties))[:, None]
    picked = ties[(block * (MXFP8.block_size - 1) + torch.arange(MXFP8.block_size)) % len(ties)]
    picked[:, -1] = E4M3.max_value
    signed = picked * (1 - 2 * ((block + _odd_lanes()) & 1))
    # Times 2**(block - 60), on the exponent field; the upper half of a float32 is a bfloat16.
    scaled = signed.view(torch.int32) + ((block.int() - 60) << FP32.mantissa_bits)
    return scaled >> 16
