"""Copying, comparing and counting bytes inside kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import inline, intrinsic

BLOCK_BYTES = 4096
"""Bytes that are compared at once, before `sum_of_flags` adds up the results: LLVM compares 32 bytes at a time where a loop
writes bytes, and 4 where it adds to int64. Ten times as fast on an EPYC, 2026-11-30."""

ONES, HIGHS, NO_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080), np.uint64(0)
_1, _2, _3, _4, _5, _6, _7 = (np.uint64(number) for number in range(1, 8))
_8, _16, _24, _32, _40, _48, _56 = (np.uint64(8 * number) for number in range(1, 8))
_255 = np.uint64(255)


@inline
def eight_bytes(data, j) -> Any:
    """Bytes j to j + 8 as one little-endian uint64; j is uint64. LLVM emits a single load."""
    eight = np.uint64(data[j]) | np.uint64(data[j + _1]) << _8 | np.uint64(data[j + _2]) << _16 | np.uint64(data[j + _3]) << _24
    eight |= np.uint64(data[j + _4]) << _32 | np.uint64(data[j + _5]) << _40
    return eight | np.uint64(data[j + _6]) << _48 | np.uint64(data[j + _7]) << _56


def eight_times(signs: bytes) -> tuple[np.uint64, ...]:
    """Each byte eight times, for `find_any`."""
    return tuple(ONES * np.uint64(sign) for sign in signs)


@inline
def zero_bytes(eight) -> Any:
    """The high bit of each of eight bytes that is 0, right up to the first of them."""
    return (eight - ONES) & ~eight & HIGHS


@inline
def bits_before(zeros) -> Any:
    """All bits of the bytes before the first that `zero_bytes` marks; of all eight where it marks none."""
    return ((zeros & (~zeros + _1)) >> _7) - _1


def _build_first_bit(_context: Any, marks: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.uint64(types.uint64), generate


@intrinsic(_build_first_bit)
def first_bit(bits: Any) -> Any:
    """The number of the lowest bit that is set, uint64; 64 where none is."""
    bits = int(bits)
    return np.uint64((bits & -bits).bit_length() - 1 if bits else 64)


@inline
def first_byte(bits) -> Any:
    """The number of the first byte with a bit in eight, uint64; 8 where there is none."""
    return first_bit(bits) >> _3


def _build_bytes_between(_context: Any, data: Any, j: Any, first: Any, size: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(context.make_array(signature.args[0])(context, builder, arguments[0]).data, [arguments[1]])
        block = ir.VectorType(ir.IntType(8), 64)
        loaded = builder.load(builder.bitcast(pointer, block.as_pointer()), align=1)
        least, most = (ir.Constant(block, [kind.literal_value] * 64) for kind in (first, size))
        return builder.bitcast(builder.icmp_unsigned("<", builder.sub(loaded, least), most), ir.IntType(64))

    return types.uint64(data, types.uint64, first, size), generate


@intrinsic(_build_bytes_between)
def bytes_between(data: Any, j: Any, first: Any, size: Any) -> Any:
    """A bit for each of the 64 bytes from j on that is in [first, first + size), which are written as numbers; uint64."""
    block = data[int(j) : int(j) + 64].tolist()
    return np.uint64(sum(1 << number for number, byte in enumerate(block) if first <= byte < first + size))


@inline
def sum_of_flags(flags: Any, num_flags: Any) -> Any:
    """The sum of the first bytes, each 0 or 1. The bytes after them, up to a multiple of eight, are set to 0."""
    stop, total = (num_flags + 7) & ~7, np.int64(0)
    for i in range(num_flags, stop):
        flags[i] = 0
    for i in range(0, stop, 8):
        total += np.int64((eight_bytes(flags, np.uint64(i)) * ONES) >> _56)
    return total


@inline
def find_any(data: Any, offset: Any, stop: Any, bytes_wanted: Any, bits_wanted: Any) -> Any:
    """The offset of the first byte in [offset, stop) that is wanted or has a wanted bit, or `stop`. `bytes_wanted`: a tuple of
    bytes, each eight times (`eight_times`); `bits_wanted`: uint64, of eight bytes."""
    position, end, size = np.uint64(offset), np.uint64(stop), np.uint64(len(data))
    while position < end and position + _8 <= size:  # the last eight may reach behind `stop`
        eight = eight_bytes(data, position)
        found = eight & bits_wanted
        for byte in bytes_wanted:
            found |= zero_bytes(eight ^ byte)
        if found:
            return min(np.int64(position + first_byte(found)), np.int64(stop))
        position += _8
    while position < end:
        found = np.uint64(data[position]) & bits_wanted & _255
        for byte in bytes_wanted:
            found |= np.uint64(np.uint64(data[position]) == byte & _255)
        if found:
            break
        position += _1
    return min(np.int64(position), np.int64(stop))


@inline
def copy_into(out: Any, values: Any) -> None:
    """Copies (n,) values. `out[:] = values` compiles for 2 s longer, because numba adds its messages about shapes."""
    for i in range(len(out)):
        out[i] = values[i]


@inline
def starts_with(data: Any, offset: Any, stop: Any, phrase: Any, case: Any) -> Any:
    """Whether `phrase`, in small letters, is at `offset`; in any case where `case` is 0x20."""
    if offset + len(phrase) > stop:
        return False
    for index in range(len(phrase)):
        byte = data[offset + index]
        if byte != phrase[index] and (not 0x41 <= byte <= 0x5A or byte | case != phrase[index]):
            return False
    return True
