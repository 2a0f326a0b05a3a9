"""Fingerprint kernels for numba: eight granules are one vector of 64-bit integers.

The loop hands LLVM explicit vectors, since numba does not vectorize such a sum by itself: a plain
loop runs at a fifth of this speed. Memory is the limit of what comes out, so the mixer is a full
one. Kernels take addresses, so that one compilation serves every stride.

Numba decides by this file's time stamp whether machine code cached on disk is current: touch it
when the constants of `_fingerprint_reference` change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it ships no types
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from syncguard._fingerprint_reference import KEY, MULTIPLIER, ROTATIONS, SHIFT

if TYPE_CHECKING:
    from collections.abc import Callable

    Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_LANES = 8
_BITS = 64
# Two vectors a turn: independent sums, and half the loop's own instructions.
_UNROLLED = 2

# Rows of a column worked on at once: their sums, 16 KiB, stay in the fastest cache.
_TOGETHER = 1 << 11

_WORD = ir.IntType(_BITS)
_VECTOR = ir.VectorType(_WORD, _LANES)


def _splat(number: int, kind: Any = _VECTOR) -> Any:
    count = getattr(kind, "count", 0)
    return ir.Constant(kind, [number] * count if count else number)


def _mix(builder: Any, value: Any) -> Any:
    """Emit `_fingerprint_reference.mix` on a word, or on each of a vector of words."""
    kind = value.type
    first, second = (
        builder.or_(
            builder.lshr(value, _splat(n, kind)), builder.shl(value, _splat(_BITS - n, kind))
        )
        for n in ROTATIONS
    )
    value = builder.xor(value, builder.xor(first, second))
    for _ in range(2):
        value = builder.mul(value, _splat(MULTIPLIER, kind))
        value = builder.xor(value, builder.lshr(value, _splat(SHIFT, kind)))
    return value


def _without_negative_zero(builder: Any, value: Any, bits: int) -> Any:
    """Emit: elements of `bits` bits that hold only a sign become zero."""
    elements = ir.VectorType(ir.IntType(bits), value.type.count * value.type.element.width // bits)
    held = builder.bitcast(value, elements)
    is_sign = builder.icmp_unsigned("==", held, _splat(1 << (bits - 1), elements))
    kept = builder.select(is_sign, _splat(0, elements), held)
    return builder.bitcast(kept, value.type)


def _in_every_lane(builder: Any, word: Any) -> Any:
    first = builder.insert_element(_splat(0), word, _WORD(0))
    every = _splat(0, ir.VectorType(ir.IntType(32), _LANES))
    return builder.shuffle_vector(first, first, every)


def _lanes_below(builder: Any, count: Any) -> Any:
    """Emit a mask of the first `count` lanes."""
    lanes = ir.Constant(_VECTOR, list(range(_LANES)))
    return builder.icmp_unsigned("<", lanes, _in_every_lane(builder, count))


def _load(builder: Any, address: Any, index: Any, kind: Any, mask: Any = None) -> Any:
    """Emit a load of lanes from `index` on; those that a mask leaves out are not touched."""
    width = getattr(kind, "element", kind).width
    place = builder.mul(index, _WORD(width // 8))
    pointer = builder.inttoptr(builder.add(address, place), kind.as_pointer())
    if mask is None:
        return builder.load(pointer, align=1)
    arguments = [pointer, ir.IntType(32)(1), mask, _splat(0, kind)]
    load = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [argument.type for argument in arguments]),
        f"llvm.masked.load.v{kind.count}i{kind.element.width}.p0",
    )
    return builder.call(load, arguments)


@intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
def _print(
    _: Any, granule: Any, negative_zero: Any, row: Any, keys: Any, start: Any, stop: Any
) -> tuple[Any, Callable[..., Any]]:
    held_kind = ir.VectorType(ir.IntType(granule.bitwidth), _LANES)
    element_bits = getattr(negative_zero, "bitwidth", 0)

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        row, keys, start, stop = arguments[2:]
        sums = [cgutils.alloca_once_value(builder, _splat(0)) for _ in range(_UNROLLED)]

        def add(total: Any, index: Any, mask: Any = None) -> None:
            granules = _load(builder, row, index, held_kind, mask)
            if element_bits:
                granules = _without_negative_zero(builder, granules, element_bits)
            terms = builder.zext(granules, _VECTOR)
            terms = _mix(builder, builder.add(terms, _load(builder, keys, index, _VECTOR, mask)))
            if mask is not None:
                terms = builder.select(mask, terms, _splat(0))
            builder.store(builder.add(builder.load(total), terms), total)

        turn = _LANES * _UNROLLED
        turns = builder.udiv(builder.sub(stop, start), _WORD(turn))
        rest = builder.add(start, builder.mul(turns, _WORD(turn)))
        with cgutils.for_range_slice(builder, start, rest, _WORD(turn), _WORD) as (index, _):
            for number, total in enumerate(sums):
                add(total, builder.add(index, _WORD(number * _LANES)))
        with cgutils.for_range_slice(builder, rest, stop, _WORD(_LANES), _WORD) as (index, _):
            add(sums[0], index, _lanes_below(builder, builder.sub(stop, index)))
        total = builder.load(sums[0])
        for other in sums[1:]:
            total = builder.add(total, builder.load(other))
        reduce = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(_WORD, [_VECTOR]),
            f"llvm.vector.reduce.add.v{_LANES}i{_BITS}",
        )
        return builder.call(reduce, [total])

    return types.uint64(granule, negative_zero, row, keys, start, stop), generate


@intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
def _add_neighbours(
    _: Any,
    granule: Any,
    element: Any,
    negative_zero: Any,
    first_column: Any,
    stride: Any,
    keys: Any,
    position: Any,
    row: Any,
    sums: Any,
) -> tuple[Any, Callable[..., Any]]:
    kind = ir.VectorType(ir.IntType(element.bitwidth), _LANES)
    columns = granule.bitwidth // element.bitwidth
    element_bits = getattr(negative_zero, "bitwidth", 0)

    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        column, stride, keys, position, row, sums = arguments[3:]
        place = builder.mul(builder.mul(position, _WORD(columns)), stride)
        column = builder.add(column, place)
        granules = _splat(0)
        for number in range(columns):
            elements = builder.zext(_load(builder, column, row, kind), _VECTOR)
            elements = builder.shl(elements, _splat(number * element.bitwidth))
            granules = builder.or_(granules, elements)
            column = builder.add(column, stride)
        if element_bits:
            granules = _without_negative_zero(builder, granules, element_bits)
        key = _in_every_lane(builder, _load(builder, keys, position, _WORD))
        terms = _mix(builder, builder.add(granules, key))
        terms = builder.add(terms, _load(builder, sums, row, _VECTOR))
        place = builder.add(sums, builder.mul(row, _WORD(_BITS // 8)))
        builder.store(terms, builder.inttoptr(place, _VECTOR.as_pointer()), align=1)
        return context.get_dummy_value()

    arguments = granule, element, negative_zero, first_column, stride, keys, position, row, sums
    return types.void(*arguments), generate


@intrinsic  # type: ignore[untyped-decorator]  # numba ships no types
def _mixed(_: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return _mix(builder, arguments[0])

    return types.uint64(word), generate


def _compile(function: Kernel) -> Kernel:
    """Compile on first call, and keep the machine code on disk if any cache folder is writable."""
    try:
        compiled: Kernel = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba found no folder to cache in
        compiled = njit(nogil=True)(function)
    return compiled


@_compile
def add_prints(
    granule: Any, negative_zero: Any, address: Any, stride: Any, keys: Any, size: Any, out: Any
) -> None:
    """Add the prints of parts of rows to `out`.

    Args:
        granule: An unsigned integer of a granule's width; only its type matters.
        negative_zero: An unsigned integer of an element's width, of which only the type matters,
            if elements that are -0 count as 0; else none.
        address: Of the first granule of the first row.
        stride: Bytes from row to row.
        keys: Address of the keys of a row's granules, which lie one after the other.
        size: Granules in a part.
        out: uint64 [rows, parts].
    """
    for row in range(out.shape[0]):
        for part in range(out.shape[1]):
            start = part * size
            out[row, part] += _print(
                granule, negative_zero, address + row * stride, keys, start, start + size
            )


@_compile
def add_neighbour_prints(
    granule: Any,
    element: Any,
    negative_zero: Any,
    address: Any,
    stride: Any,
    keys: Any,
    count: Any,
    sums: Any,
    rows: Any,
) -> None:
    """Add the prints of rows to `sums`, where a column and not a row is contiguous.

    Args:
        granule: As for `add_prints`.
        element: An unsigned integer of an element's width, at most a granule's.
        negative_zero: As for `add_prints`.
        address: Of the first element of the first row.
        stride: Bytes from column to column.
        keys: As for `add_prints`.
        count: Granules in a row.
        sums: Address of one uint64 a row.
        rows: A multiple of 8.
    """
    for block in range(0, rows, _TOGETHER):
        for position in range(count):
            for row in range(block, min(block + _TOGETHER, rows), _LANES):
                _add_neighbours(
                    granule, element, negative_zero, address, stride, keys, position, row, sums
                )


@_compile
def fill_keys(first: Any, out: Any) -> None:
    """Write the keys of the positions from `first` on, `_fingerprint_reference.key`."""
    for index in range(out.size):
        out[index] = _mixed(np.uint64(first + index + 1) * np.uint64(KEY))
