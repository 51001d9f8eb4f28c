"""What the hashing kernels share: a finaliser, and bytes read eight at a time. Each is compiled into its callers."""

from __future__ import annotations

import numpy as np

from datapipe.kernels import inline

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_1, _2, _3, _4, _5, _6, _7 = (np.uint64(number) for number in range(1, 8))
_8, _16, _24, _32, _40, _48, _56 = (np.uint64(8 * number) for number in range(1, 8))
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)


@inline
def mix64(value):
    """The splitmix64 finaliser of a uint64, as `rng.mix64`."""
    value = (value ^ (value >> _30)) * _MIX_1
    value = (value ^ (value >> _27)) * _MIX_2
    return value ^ (value >> _31)


@inline
def eight_bytes(data, j):
    """Bytes j to j + 8 as one little-endian uint64, j uint64. LLVM makes one load of it."""
    eight = np.uint64(data[j]) | np.uint64(data[j + _1]) << _8 | np.uint64(data[j + _2]) << _16 | np.uint64(data[j + _3]) << _24
    eight |= np.uint64(data[j + _4]) << _32 | np.uint64(data[j + _5]) << _40
    return eight | np.uint64(data[j + _6]) << _48 | np.uint64(data[j + _7]) << _56
