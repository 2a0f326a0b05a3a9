"""MXFP8 kernels for numba: one block of 32 is one vector of integers, rule `round_up`.

The kernels hand LLVM explicit vectors. Left to itself it vectorizes such loops only in part, and
they run at a quarter of the speed. Only integers occur: bfloat16 lanes have 16 bits, float32 lanes
32, and E4M3 is that format with a shorter mantissa, so that most of a conversion is a subtraction
on the exponent field and a rounding shift.

A block is *regular* if neither its maximum nor its scale lies near the ends of the ranges. The
kernels only flag the other, *special* blocks: tiny, infinite, NaN.

Numba decides by this file's time stamp whether machine code cached on disk is current: whatever
shapes the machine code must stay in this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from llvmlite import ir  # type: ignore[import-untyped]  # it ships no types
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from syncguard.grids.formats import BF16, E4M3, E8M0, FP32, MXFP8, NumberFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = TypeVar("Kernel", bound=Callable[..., Any])

LANES = MXFP8.block_size

STREAM_ALIGNMENT = 64
"""Bytes, of a cache line; a block of the results is a whole number of them."""

# Exponent fields of the smallest maximum and scale bytes of the smallest and largest scale that
# are regular: below, an element or its product can be subnormal in the wide format.
_LEAST_MAXIMUM = 20
_LEAST_SCALE, _LARGEST_SCALE = 10, 246

# Where E4M3 subnormals round up to 1, 2, ... 8 units of 2**-9, as bfloat16 magnitudes with E4M3's
# bias: k - 1/2 units. That tie goes to the even side: k odd needs more than it, k even does not.
_SUBNORMAL_STEPS = (-384, -192, -96, -32, 16, 48, 80, 112)


def _format(width: int) -> NumberFormat:
    return BF16 if width == BF16.bits else FP32


class _Lanes:
    """An LLVM integer, or vector of LANES integers, with Python's operators; `>>` is arithmetic."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @property
    def width(self) -> int:
        return int(getattr(self.value.type, "element", self.value.type).width)

    def _operand(self, other: _Lanes | int) -> Any:
        """Return `other` as a value of this type: a constant, or a scalar in every lane."""
        own = self.value.type
        is_vector = isinstance(own, ir.VectorType)
        if isinstance(other, int):
            return ir.Constant(own, [other] * LANES if is_vector else other)
        if not is_vector or other.value.type == own:
            return other.value
        empty, zero = ir.Constant(own, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        first = self.builder.insert_element(empty, other.value, zero)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, empty, lanes)

    def _new(self, value: Any) -> _Lanes:
        return _Lanes(self.builder, value)

    def __and__(self, other: _Lanes | int) -> _Lanes:
        return self._new(self.builder.and_(self.value, self._operand(other)))

    def __or__(self, other: _Lanes | int) -> _Lanes:
        return self._new(self.builder.or_(self.value, self._operand(other)))

    def __add__(self, other: _Lanes | int) -> _Lanes:
        return self._new(self.builder.add(self.value, self._operand(other)))

    def __sub__(self, other: _Lanes | int) -> _Lanes:
        return self._new(self.builder.sub(self.value, self._operand(other)))

    def __lshift__(self, other: _Lanes | int) -> _Lanes:
        return self._new(self.builder.shl(self.value, self._operand(other)))

    def __rshift__(self, other: _Lanes | int) -> _Lanes:
        return self._new(self.builder.ashr(self.value, self._operand(other)))

    def compare(self, operator: str, other: _Lanes | int) -> _Lanes:
        """Compare as signed integers; the result has lanes of one bit."""
        return self._new(self.builder.icmp_signed(operator, self.value, self._operand(other)))

    def choose(self, yes: _Lanes | int, no: _Lanes) -> _Lanes:
        """Take `yes` where this condition holds and `no` elsewhere."""
        chosen = no._operand(yes)
        return self._new(self.builder.select(self.value, chosen, no.value))

    def resize(self, width: int) -> _Lanes:
        """Zero-extend or truncate every lane to `width` bits."""
        target = ir.IntType(width)
        if isinstance(self.value.type, ir.VectorType):
            target = ir.VectorType(target, LANES)
        if width == self.width:
            return self
        resize = self.builder.zext if width > self.width else self.builder.trunc
        return self._new(resize(self.value, target))

    def bitmask(self) -> Any:
        """Pack lanes of one bit into one LLVM integer of LANES bits."""
        return self.builder.bitcast(self.value, ir.IntType(LANES))

    def largest(self) -> _Lanes:
        """Reduce the lanes to the largest."""
        vector = self.value.type
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(vector.element, [vector]),
            f"llvm.vector.reduce.smax.v{LANES}i{self.width}",
        )
        return self._new(self.builder.call(function, [self.value]))


class _Array:
    """A contiguous numba array inside a kernel, read and written in blocks."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self.builder = builder
        self.item = ir.IntType(kind.dtype.bitwidth)
        self.data = context.make_array(kind)(context, builder, value).data

    def _pointer(self, index: Any, target: Any) -> Any:
        address = self.builder.gep(self.data, [index])
        return self.builder.bitcast(address, target.as_pointer())

    def load_block(self, block: Any) -> _Lanes:
        vector = ir.VectorType(self.item, LANES)
        first = self.builder.mul(block, ir.Constant(block.type, LANES))
        pointer = self._pointer(first, vector)
        return _Lanes(self.builder, self.builder.load(pointer, align=self.item.width // 8))

    def store_block(self, block: Any, lanes: _Lanes, *, stream: bool = False) -> None:
        """Store a block; a stream goes past the caches, to an array that begins a cache line."""
        lanes = lanes.resize(self.item.width)
        first = self.builder.mul(block, ir.Constant(block.type, LANES))
        pointer = self._pointer(first, lanes.value.type)
        aligned = STREAM_ALIGNMENT if stream else self.item.width // 8
        store = self.builder.store(lanes.value, pointer, align=aligned)
        if stream:
            marked = self.builder.module.add_metadata([ir.IntType(32)(1)])
            store.set_metadata("nontemporal", marked)

    def load(self, index: Any) -> _Lanes:
        return _Lanes(self.builder, self.builder.load(self._pointer(index, self.item)))

    def store(self, index: Any, scalar: _Lanes) -> None:
        scalar = scalar.resize(self.item.width)
        self.builder.store(scalar.value, self._pointer(index, self.item))


def _rarely(
    condition: _Lanes, usual: tuple[_Lanes, ...], compute: Callable[[], tuple[_Lanes, ...]]
) -> tuple[_Lanes, ...]:
    """Return `usual`, or if the condition holds in any lane what `compute` emits, by a branch."""
    builder = condition.builder
    none = ir.IntType(LANES)(0)
    start = builder.block
    with builder.if_then(builder.icmp_unsigned("!=", condition.bitmask(), none), likely=False):
        unusual = compute()
        end = builder.block
    merged = []
    for before, after in zip(usual, unusual, strict=True):
        value = builder.phi(before.value.type)
        value.add_incoming(before.value, start)
        value.add_incoming(after.value, end)
        merged.append(_Lanes(builder, value))
    return tuple(merged)


def _quantize_lanes(codes: _Lanes) -> tuple[_Lanes, _Lanes, _Lanes]:
    """Return element bytes, scale byte and whether the block is special (then they are void)."""
    wide = _format(codes.width)
    mantissa, extra = wide.mantissa_bits, wide.mantissa_bits - BF16.mantissa_bits
    magnitudes = codes & wide.magnitude_mask
    maximum = magnitudes.largest()
    fraction = maximum & ((1 << mantissa) - 1)
    scale = (maximum >> mantissa) - 8 + fraction.compare(">", 0x60 << extra).resize(codes.width)
    is_zero = maximum.compare("==", 0)
    scale = is_zero.choose(0, scale)
    # The source's fields with E4M3's bias; the zeros of a zero block go where they round to 0.
    rebiased = magnitudes - is_zero.choose(4 << mantissa, (scale - E4M3.bias) << mantissa)
    # Round half even at the last of E4M3's mantissa bits.
    drop = mantissa - E4M3.mantissa_bits
    odd = (rebiased >> drop) & 1
    normal = (rebiased + ((1 << (drop - 1)) - 1) + odd) >> drop
    is_small = rebiased.compare("<", 1 << mantissa)

    def with_subnormals() -> tuple[_Lanes, ...]:
        units = rebiased & 0
        for k, step in enumerate(_SUBNORMAL_STEPS, 1):
            reached = rebiased.compare(">" if k % 2 else ">=", step << extra)
            units = units + reached.resize(codes.width)
        return (is_small.choose(units, normal),)

    # 0.3 % of the blocks of Gaussian weights hold an E4M3 subnormal.
    (rounded,) = _rarely(is_small, (normal,), with_subnormals)
    sign = (codes >> (codes.width - 8)) & E4M3.sign_bit
    tiny = maximum.compare("<", _LEAST_MAXIMUM << mantissa) & maximum.compare(">", 0)
    special = tiny | maximum.compare(">=", wide.overflow)
    return (rounded | sign).resize(8), scale.resize(8), special


def _dequantize_lanes(codes: _Lanes, scale: _Lanes, width: int) -> tuple[_Lanes, _Lanes]:
    """Return bfloat16 or float32 bits (by `width`) and whether the block is special."""
    wide = _format(width)
    mantissa = wide.mantissa_bits
    one = 1 << mantissa
    scale = scale.resize(width)
    bytes_ = codes.resize(width)
    magnitudes = bytes_ & E4M3.magnitude_mask
    rebias = (scale - E4M3.bias) << mantissa
    normal = (magnitudes << (mantissa - E4M3.mantissa_bits)) + rebias
    is_small = magnitudes.compare("<", 8)
    is_nan = magnitudes.compare("==", E4M3.nan)
    extreme = scale.compare("<", _LEAST_SCALE) | scale.compare(">", _LARGEST_SCALE)

    def with_subnormals() -> tuple[_Lanes, ...]:
        # 1, 2..3 and 4..7 units of 2**-9 have E4M3's exponent fields -2, -1 and 0.
        small = ((magnitudes - 4) << (mantissa - 2)) + rebias
        two = ((magnitudes - 2) << (mantissa - 1)) - one + rebias
        small = magnitudes.compare("<", 4).choose(two, small)
        small = magnitudes.compare("==", 1).choose(rebias - 2 * one, small)
        small = magnitudes.compare("==", 0).choose(0, small)
        values = is_nan.choose(wide.nan, is_small.choose(small, normal))
        # Zero blocks are common (padding) and have scale byte 0: they stay regular.
        not_zero = magnitudes.largest().compare(">", 0) | scale.compare("==", E8M0.nan)
        return values, extreme & not_zero

    values, special = _rarely(is_small | is_nan, (normal, extreme), with_subnormals)
    return values | ((bytes_ & E4M3.sign_bit) << (width - 8)), special


@intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
def _quantize_block(
    _: Any, weight: Any, elements: Any, scales: Any, block: Any
) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, target_scales = (
            _Array(context, builder, kind, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        codes, scale, special = _quantize_lanes(source.load_block(arguments[3]))
        target.store_block(arguments[3], codes)
        target_scales.store(arguments[3], scale)
        return special.value

    return types.boolean(weight, elements, scales, block), generate


@intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
def _compare_block(
    _: Any, weight: Any, elements: Any, scales: Any, block: Any
) -> tuple[Any, Callable[..., Any]]:
    result = types.Tuple((types.boolean, types.int64, types.int64))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, other, other_scales = (
            _Array(context, builder, kind, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        codes, scale, special = _quantize_lanes(source.load_block(arguments[3]))
        differ = codes.compare("!=", other.load_block(arguments[3])).bitmask()
        count = _Lanes(builder, builder.ctpop(differ)).resize(64)
        scale_differs = scale.compare("!=", other_scales.load(arguments[3])).resize(64)
        values = (special.value, count.value, scale_differs.value)
        return context.make_tuple(builder, signature.return_type, values)

    return result(weight, elements, scales, block), generate


@intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
def _dequantize_block(
    _: Any, elements: Any, scales: Any, out: Any, block: Any, stream: Any
) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, source_scales, target = (
            _Array(context, builder, kind, value)
            for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
        )
        values, special = _dequantize_lanes(
            source.load_block(arguments[3]), source_scales.load(arguments[3]), target.item.width
        )
        target.store_block(arguments[3], values, stream=not isinstance(stream, types.NoneType))
        return special.value

    return types.boolean(elements, scales, out, block, stream), generate


def _compile(function: Kernel) -> Kernel:
    """Compile on first call, and keep the machine code on disk if any cache folder is writable."""
    try:
        compiled: Kernel = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder to cache in
        compiled = njit(nogil=True)(function)
    return compiled


@_compile
def quantize(weight: Any, elements: Any, scales: Any, special: Any) -> Any:
    """Quantize flat arrays, mark special blocks in `special`, return (their number, 0, 0)."""
    found = 0
    for block in range(scales.size):
        if _quantize_block(weight, elements, scales, block):
            special[block] = True
            found += 1
    return found, 0, 0


@_compile
def compare(weight: Any, elements: Any, scales: Any, special: Any) -> Any:
    """Return (special blocks, element bytes differing, scale bytes differing); mark special."""
    found, elements_differ, scales_differ = 0, 0, 0
    for block in range(scales.size):
        is_special, count, scale_count = _compare_block(weight, elements, scales, block)
        if is_special:
            special[block] = True
            found += 1
        else:
            elements_differ += count
            scales_differ += scale_count
    return found, elements_differ, scales_differ


@_compile
def dequantize(elements: Any, scales: Any, out: Any, special: Any, stream: Any) -> Any:
    """Dequantize flat arrays, mark special blocks in `special`, return (their number, 0, 0).

    With `stream`, of which only the type matters, results go past the caches; none keeps them.
    """
    found = 0
    for block in range(scales.size):
        if _dequantize_block(elements, scales, out, block, stream):
            special[block] = True
            found += 1
    return found, 0, 0
