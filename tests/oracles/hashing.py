"""Hashes of 64 bits with Python's own integers."""

from __future__ import annotations

from collections.abc import Iterable

MASK = 2**64 - 1


def mix(value: int) -> int:
    """The finalizer of splitmix64."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def fnv(data: Iterable[int]) -> int:
    """FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def polynomial(hashes: Iterable[int], radix: int = 0xD1342543DE82EF9B) -> int:
    """Hashes as the digits of one number."""
    value = 0
    for hashed in hashes:
        value = (value * radix + hashed) & MASK
    return value
