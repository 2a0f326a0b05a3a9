"""The stand-ins keep the contracts of the kernels they stand for, and agree with real code."""

import importlib
import sys
from typing import Any

import pytest
import torch

from syncguard.engines.sglang.fakes import FAKED, FakeCalled, importing
from syncguard.engines.sglang.standins import (
    block_scale_interleave,
    downcast_to_mxfp,
    mm_mxfp8,
    mxfp8_quantize,
    shuffle_matrix_a,
    shuffle_matrix_sf_a,
)
from syncguard.grids import canary, dequantize


def values(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).bfloat16()


def test_the_quantizers_follow_torchaos_round_up_rule() -> None:
    mx = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    config = importlib.import_module("torchao.prototype.mx_formats.config")
    scales, elements = mx.to_mx(
        canary(), torch.float8_e4m3fn, 32, config.ScaleCalculationMode.RCEIL
    )
    got_elements, got_scales = downcast_to_mxfp(canary(), torch.float8_e4m3fn, axis=1)
    lasting = got_scales != 0  # quantizers differ where they flush blocks to zero
    blocks = (canary().shape[0], -1, 32)
    same = got_elements.view(torch.uint8) == elements.view(torch.uint8)
    assert torch.equal(got_scales[lasting], scales.view(torch.uint8)[lasting])
    assert same.reshape(blocks)[lasting].all()


def test_scales_are_laid_out_as_torchao_lays_them_out() -> None:
    utils = importlib.import_module("torchao.prototype.mx_formats.utils")
    _, scales = downcast_to_mxfp(values(200, 160), torch.float8_e4m3fn, axis=1)
    flat = block_scale_interleave(scales)
    assert flat.shape == (256 * 8,)
    assert torch.equal(flat, utils.to_blocked(scales).flatten())


def test_activations_are_quantized_as_weights_are() -> None:
    x = values(3, 128)
    elements, flat = mxfp8_quantize(x)
    wanted, scales = downcast_to_mxfp(x, torch.float8_e4m3fn, axis=1)
    assert torch.equal(elements.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(flat, block_scale_interleave(scales))
    assert torch.equal(mxfp8_quantize(x, is_sf_swizzled_layout=False)[1], scales.flatten())


def test_the_product_is_that_of_the_dequantized_operands() -> None:
    x, w = values(5, 160), values(200, 160, seed=1)
    a, a_scales = downcast_to_mxfp(x, torch.float8_e4m3fn, axis=1)
    b, b_scales = downcast_to_mxfp(w, torch.float8_e4m3fn, axis=1)
    out = mm_mxfp8(
        a,
        b.t(),
        block_scale_interleave(a_scales),
        block_scale_interleave(b_scales),
        out_dtype=torch.bfloat16,
        backend="cutlass",
    )
    exact = dequantize(a, a_scales).double() @ dequantize(b, b_scales).double().T
    unit = torch.finfo(torch.bfloat16).eps  # one rounding of the output
    assert ((out.double() - exact).abs() <= unit * exact.abs() + 1e-5).all()


def test_rows_are_shuffled_as_the_real_function_does_it() -> None:
    """FlashInfer's is plain torch, and runs on a CPU where it is installed."""
    flashinfer = pytest.importorskip("flashinfer")
    x = values(256, 96)
    assert torch.equal(shuffle_matrix_a(x, 128), flashinfer.shuffle_matrix_a(x, 128))


def test_rows_move_within_blocks_of_32() -> None:
    numbered = torch.arange(64).view(64, 1)
    shuffled = shuffle_matrix_a(numbered, 128).flatten().tolist()
    for row in range(64):
        block, within = divmod(row, 32)
        assert shuffled[32 * block + 8 * (within % 4) + within // 4] == row
    scales = torch.arange(128 * 4).remainder(251).to(torch.uint8).view(128, 4)
    flat = shuffle_matrix_sf_a(scales, 128, num_elts_per_sf=32)
    assert torch.equal(flat, block_scale_interleave(shuffle_matrix_a(scales, 128).contiguous()))


def test_the_product_of_shuffled_operands_is_that_of_the_plain_ones() -> None:
    x, w = values(5, 128), values(160, 128, seed=1)
    a, a_scales = downcast_to_mxfp(x, torch.float8_e4m3fn, axis=1)
    b, b_scales = downcast_to_mxfp(w, torch.float8_e4m3fn, axis=1)
    flat = block_scale_interleave(a_scales)
    plain = mm_mxfp8(a, b.t(), flat, block_scale_interleave(b_scales), out_dtype=torch.bfloat16)
    rows = shuffle_matrix_a(b.view(torch.uint8), 128).view(torch.float8_e4m3fn)
    padded = torch.nn.functional.pad(b_scales, (0, 0, 0, 96))
    scales = shuffle_matrix_sf_a(padded, 128, num_elts_per_sf=32)
    shuffled = mm_mxfp8(a, rows.t(), flat, scales, out_dtype=torch.bfloat16, backend="trtllm")
    assert torch.equal(plain, shuffled)


def refusals() -> dict[str, tuple[Any, str]]:
    x, wide = values(4, 128), values(128, 128)
    a, a_scales = mxfp8_quantize(x)
    b, b_scales = mxfp8_quantize(wide)
    e4m3 = torch.float8_e4m3fn

    def mm(**changed: Any) -> Any:
        given = {"a": a, "b": b.t(), "a_scales": a_scales, "b_scales": b_scales}
        return lambda: mm_mxfp8(**{**given, "out_dtype": torch.bfloat16, **changed})

    return {
        "quantized source": (lambda: downcast_to_mxfp(b, e4m3, 1), "expected a source in bf16"),
        "other format": (lambda: downcast_to_mxfp(x, torch.float8_e5m2, 1), "got .*e5m2"),
        "columns": (lambda: downcast_to_mxfp(x, e4m3, 0), "rows of a matrix"),
        "float32 activations": (lambda: mxfp8_quantize(x.float()), "bf16 or fp16 values"),
        "part of a block": (lambda: mxfp8_quantize(values(4, 40)), r"\[M, 32 k\]"),
        "float scales": (lambda: block_scale_interleave(x), "uint8 scales"),
        "transposed scales": (
            lambda: block_scale_interleave(b.view(torch.uint8).t()),
            "contiguous",
        ),
        "row-major": (mm(b=b.t().contiguous()), "column-major"),
        "unswizzled scales": (mm(b_scales=b_scales.reshape(128, 4)), "flat uint8"),
        "unpadded scales": (mm(a_scales=a_scales[:16]), "4 rows x 4 blocks take 512"),
        "narrow": (mm(b=b[:64].t()), "at least 128"),
        "bf16 operand": (mm(a=x), "float8_e4m3fn"),
        "float32 output": (mm(out_dtype=torch.float32), "bf16 or fp16 output"),
        "another kernel": (mm(backend="cudnn"), "cute-dsl, cutlass, trtllm"),
        "another tile": (lambda: shuffle_matrix_a(b, 64), "an epilogue tile of 128"),
        "part of a shuffle": (lambda: shuffle_matrix_a(b[:40], 128), r"\[32 n, K\]"),
        "scales of 16": (lambda: shuffle_matrix_sf_a(wide, 128), "32 elements a scale"),
        "unpadded rows": (
            lambda: shuffle_matrix_sf_a(b.view(torch.uint8)[:96, :4], 128, num_elts_per_sf=32),
            r"\[128 n, 4 k\]",
        ),
    }


@pytest.mark.parametrize("case", refusals())
def test_outside_its_contract_a_stand_in_raises(case: str) -> None:
    call, message = refusals()[case]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.xdist_group("sglang")
def test_fakes_are_there_only_while_imports_last_and_raise_when_called() -> None:
    missing = [name for name in FAKED if importlib.util.find_spec(name) is None]
    if not missing:
        pytest.skip("everything that could be faked is installed")
    with importing():
        module = importlib.import_module(missing[0])
        with pytest.raises(FakeCalled, match=f"{missing[0]}.anything was called"):
            module.anything()
    assert missing[0] not in sys.modules
    assert importlib.util.find_spec(missing[0]) is None


@pytest.mark.xdist_group("sglang")
def test_a_kernel_can_be_decorated_and_never_launched() -> None:
    if importlib.util.find_spec("triton") is not None:
        pytest.skip("triton is installed")
    with importing():
        triton = importlib.import_module("triton")
        kernel = triton.autotune(configs=[triton.Config({})])(triton.jit(lambda x: x))
    with pytest.raises(FakeCalled, match="only faked here"):
        kernel[(1,)](0)
