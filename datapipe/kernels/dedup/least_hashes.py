"""The least hash of shingles under two permutations, eight shingles at a time, in LLVM's vectors of 256 bits.

    x                 x0 x1 x2 x3 x4 x5 x6 x7          (8,) uint32
    even, odd         x0 x1 x4 x5,  x2 x3 x6 x7        (4,) uint64 each
    low(a) * x + b    64 bits each, whose upper halves go back to the order of x
    + high(a) * x     32 bits: the upper half of a * x + b
    least             minimum

The upper half of `a * x + b mod 2**64` needs one product of 32 bits and 64 bits, and one of 32 bits,
where the whole number takes two of 64 bits and a shift, and its minimum another two instructions.
LLVM finds none of this in a loop: 14.6 ns a shingle of 112 permutations, and 29.3 before, on an EPYC with AVX2,
2026-11-30. LLVM splits or joins the vectors for other processors; the numbers are the same on each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels import intrinsic

LANES = 8
_EVEN, _ODD = (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)  # 8 and more: zeros, the upper halves of uint64
_UPPER_HALVES = (1, 3, 9, 11, 5, 7, 13, 15)


def _shuffled(builder: Any, first: Any, second: Any, order: tuple[int, ...]) -> Any:
    """The lanes of two vectors, by their number."""
    from llvmlite import ir

    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order)))


def _in_all_lanes(builder: Any, number: Any, lanes: int) -> Any:
    from llvmlite import ir

    undefined = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    return _shuffled(builder, builder.insert_element(undefined, number, ir.IntType(32)(0)), undefined, (0,) * lanes)


def _lesser(builder: Any, first: Any, second: Any) -> Any:
    return builder.select(builder.icmp_signed("<", first, second), first, second)


def _least_lane(builder: Any, vector: Any) -> Any:
    from llvmlite import ir

    for lanes in (4, 2, 1):
        first, second = tuple(range(lanes)), tuple(range(lanes, 2 * lanes))
        vector = _lesser(builder, _shuffled(builder, vector, vector, first), _shuffled(builder, vector, vector, second))
    return builder.extract_element(vector, ir.IntType(32)(0))


def _permutation(builder: Any, a: Any, b: Any) -> tuple[Any, Any, Any]:
    """The lower and the upper half of a, and b, in all lanes."""
    from llvmlite import ir

    low = builder.and_(a, ir.IntType(64)(0xFFFFFFFF))
    high = builder.trunc(builder.lshr(a, ir.IntType(64)(32)), ir.IntType(32))
    return _in_all_lanes(builder, low, 4), _in_all_lanes(builder, high, LANES), _in_all_lanes(builder, b, 4)


def _upper_halves(builder: Any, permutation: tuple[Any, Any, Any], shingles: Any) -> Any:
    """The upper halves of `a * x + b` for eight shingles x."""
    from llvmlite import ir

    low, high, addend = permutation
    zeros = ir.Constant(shingles.type, [0] * LANES)
    wide = [builder.bitcast(_shuffled(builder, shingles, zeros, order), low.type) for order in (_EVEN, _ODD)]
    even, odd = (builder.bitcast(builder.add(builder.mul(half, low), addend), shingles.type) for half in wide)
    return builder.add(_shuffled(builder, even, odd, _UPPER_HALVES), builder.mul(shingles, high))


def _build_lower_two(_context: Any, block: Any, num_shingles: Any, a: Any, b: Any, least: Any, p: Any, q: Any) -> Any:
    from llvmlite import ir
    from numba.core import cgutils, types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        index, eight = ir.IntType(64), ir.VectorType(ir.IntType(32), LANES)
        shingles, all_a, all_b, all_least = (
            context.make_array(signature.args[number])(context, builder, arguments[number]).data for number in (0, 2, 3, 4)
        )
        targets = [builder.gep(all_least, [number]) for number in arguments[5:]]
        lowest = [cgutils.alloca_once_value(builder, _in_all_lanes(builder, builder.load(least), LANES)) for least in targets]
        both = [
            _permutation(builder, *(builder.load(builder.gep(numbers, [number])) for numbers in (all_a, all_b)))
            for number in arguments[5:]
        ]
        with cgutils.for_range(builder, builder.udiv(arguments[1], index(LANES)), intp=index) as loop:
            position = builder.gep(shingles, [builder.mul(loop.index, index(LANES))])
            loaded = builder.load(builder.bitcast(position, eight.as_pointer()), align=4)
            for permutation, vector in zip(both, lowest):
                hashed = _upper_halves(builder, permutation, loaded)
                builder.store(_lesser(builder, hashed, builder.load(vector)), vector)
        for vector, target in zip(lowest, targets):
            builder.store(_least_lane(builder, builder.load(vector)), target)
        return context.get_dummy_value()

    return types.void(block, types.int64, a, b, least, types.int64, types.int64), generate


@intrinsic(_build_lower_two)
def lower_two(block: Any, num_shingles: Any, a: Any, b: Any, least: Any, p: Any, q: Any) -> None:
    """Lowers `least[p]` and `least[q]` to the least upper half of `a * x + b`, signed, over the first shingles x of a block.

    Args:
        block: (at least num_shingles,) uint32; num_shingles is a multiple of `LANES`.
        a, b: (num_perm,) int64.
        least: (num_perm,) int32.
    """
    for number in (p, q):
        hashed = (a[number] * block[:num_shingles].astype(np.int64) + b[number]) >> 32
        least[number] = min(least[number], hashed.min())
