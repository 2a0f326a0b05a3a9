"""Fingerprints against a copy: weights, values, scales, and the layouts they come in.

The traffic of a fingerprint is the bytes it reads; that of the copy is what it reads and writes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from _measure import (
    Row,
    Spread,
    at_least,
    machine,
    noted,
    record,
    rounds,
    share_of_copy,
    use_all_cores,
)

from syncguard.fingerprint import row_prints, value_print

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS = 20
_BYTES = 128 << 20
_SCALE_BYTES = 16 << 20


def _rows() -> list[Row]:
    octets = torch.randint(0, 256, (_BYTES,), dtype=torch.uint8)
    fp8 = octets.view(torch.float8_e4m3fn).view(-1, 4096)
    bf16 = octets.view(torch.bfloat16).view(-1, 2048)
    rows = [
        at_least(name, _share(tensor, row_prints), "ratio", 0.5)
        for name, tensor in (
            ("fingerprint of fp8 bytes, share of copy", fp8),
            ("fingerprint of bf16 bytes, share of copy", bf16),
        )
    ]
    wide = octets.view(torch.float8_e4m3fn).view(-1, 32768)
    transposed = octets.view(torch.bfloat16).view(256, -1).T
    for name, tensor, function in (
        ("fingerprint of fp8 bytes, rows of 32 KiB", wide, row_prints),
        ("fingerprint of fp8 bytes, one row", octets, row_prints),
        ("value print of bf16", bf16, value_print),
        ("value print of bf16, columns contiguous", transposed, value_print),
    ):
        rows.append(noted(f"{name}, share of copy", _share(tensor, function), "ratio"))
    for width, granule in ((18, 1), (64, 1), (128, 1), (128, 4)):
        scales = octets[: _SCALE_BYTES // width * width].view(-1, width)
        name = f"fingerprint of scales, rows of {width} in granules of {granule}, share of copy"
        function = partial(row_prints, granule=granule)
        rows.append(noted(name, _share(scales, function), "ratio"))
    return rows


def _share(tensor: torch.Tensor, function: Callable[[torch.Tensor], object]) -> Spread:
    return share_of_copy(partial(function, tensor), tensor.nbytes, rounds(_ROUNDS))


if __name__ == "__main__":
    use_all_cores()
    print(f"  {machine()}")
    record(_rows())
