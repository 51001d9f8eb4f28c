"""Hashing for all kernels: FNV-1a, the finaliser of splitmix64, and open-addressing tables of 64-bit keys.

`Words.hashes` holds `mix64(fnv(bytes))`; `hash_bytes` computes it inside a kernel, `hash_of` in Python.

A table is an array (num_slots,) uint64, with a power of two of slots and more slots than keys. 0 marks a free slot, so no
key is 0. A key lies in the first free slot from `key & (num_slots - 1)` on (linear probing).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels import inline
from datapipe.rng import MIX_1, MIX_2
from datapipe.rng import mix64 as mix64_of_each

FNV_BASIS = np.uint64(0xCBF29CE484222325)
"""The initial value of 64-bit FNV-1a (Fowler, Noll and Vo)."""

_FNV_PRIME = np.uint64(0x100000001B3)
_ALL_BITS = (1 << 64) - 1
_0, _1 = np.uint64(0), np.uint64(1)
_27, _30, _31, _54, _60, _62 = (np.uint64(bits) for bits in (27, 30, 31, 54, 60, 62))
_FNV_INVERSE, _INVERSE_1, _INVERSE_2 = (np.uint64(pow(int(factor), -1, 1 << 64)) for factor in (_FNV_PRIME, MIX_1, MIX_2))


@inline
def fnv_step(hashed, byte) -> Any:
    return (hashed ^ np.uint64(byte)) * _FNV_PRIME


@inline
def fnv(data, start, stop) -> Any:
    """FNV-1a of the bytes [start, stop). In loops over characters `fnv_step` is twice as fast."""
    hashed = FNV_BASIS
    for j in range(start, stop):
        hashed = fnv_step(hashed, data[j])
    return hashed


@inline
def mix64(value) -> Any:
    """The splitmix64 finaliser of one uint64; `datapipe.rng.mix64` is the same for arrays."""
    value = (value ^ (value >> _30)) * MIX_1
    value = (value ^ (value >> _27)) * MIX_2
    return value ^ (value >> _31)


@inline
def hash_bytes(data, start, stop) -> Any:
    """The hash of the bytes [start, stop) of `data`, equal to that in `Words.hashes`."""
    return mix64(fnv(data, start, stop))


@inline
def hash_without_last(hashed, byte) -> Any:
    """The hash of some bytes without the last one, `byte`. `hashed` is the hash of all of them, and FNV-1a and the finaliser
    have inverses."""
    value = (hashed ^ (hashed >> _31) ^ (hashed >> _62)) * _INVERSE_2
    value = (value ^ (value >> _27) ^ (value >> _54)) * _INVERSE_1
    value = value ^ (value >> _30) ^ (value >> _60)
    return mix64((value * _FNV_INVERSE) ^ np.uint64(byte))


def hash_of(word: bytes) -> int:
    hashed = int(FNV_BASIS)
    for byte in word:
        hashed = (hashed ^ byte) * int(_FNV_PRIME) & _ALL_BITS
    return int(mix64_of_each(np.array([hashed], np.uint64))[0])


def num_slots_for(num_keys: int, max_slots: int = 1 << 62) -> int:
    """Number of slots of a table at most half full: a power of two, capped at `max_slots` (a power of two)."""
    return min(max_slots, 1 << max(1, (2 * num_keys).bit_length()))


def table_of(keys: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """A table of distinct keys, at most a quarter full: (num_slots,) uint64, and the slot of each key, (num_keys,) int64."""
    num_slots = num_slots_for(2 * len(keys))
    table, slots = np.zeros(num_slots, np.uint64), np.empty(len(keys), np.int64)
    for index, key in enumerate(keys):
        slot = key & (num_slots - 1)
        while table[slot]:
            slot = (slot + 1) & (num_slots - 1)
        table[slot], slots[index] = key, slot
    return table, slots


@inline
def table_size(num_keys, max_slots) -> Any:
    """The smallest power of two of at least `2 * num_keys` slots, at most `max_slots`."""
    size = np.int64(2)
    while size < max_slots and size < 2 * num_keys:
        size *= 2
    return size


@inline
def find_slot(keys, num_slots, key) -> Any:
    """The slot of `key` in `keys[:num_slots]`, or the free one; uint64: never checked for signs."""
    mask = np.uint64(num_slots - 1)
    slot = key & mask
    while keys[slot] != _0 and keys[slot] != key:
        slot = (slot + _1) & mask
    return slot


@inline
def slot_of_key(keys, num_slots, key) -> Any:
    """The slot of `key` in `keys[:num_slots]`, or -1: `cut_words` is 6 % faster by it."""
    slot = np.int64(key & np.uint64(num_slots - 1))
    while keys[slot] != _0:
        if keys[slot] == key:
            return slot
        slot = (slot + 1) & (num_slots - 1)
    return np.int64(-1)
