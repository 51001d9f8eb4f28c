"""Membership in lists, by Python's own sets and substrings."""

from __future__ import annotations

import re

_MASK = (1 << 64) - 1


def hashed(text: bytes) -> int:
    """FNV-1a from the last byte to the first, finished by splitmix64; 1 replaces 0."""
    value = 0xCBF29CE484222325
    for byte in reversed(text):
        value = (value ^ byte) * 0x100000001B3 & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return (value ^ (value >> 31)) or 1


def table(hashes: list[int], size: int) -> list[int]:
    """Each hash in the first slot, from its own on, that is free or its own."""
    slots = [0] * size
    for key in hashes:
        slot = key % size
        while slots[slot] not in (0, key):
            slot = (slot + 1) % size
        slots[slot] = key
    return slots


def domains(host: bytes) -> list[bytes]:
    """a.b.c  ->  a.b.c, b.c, c"""
    labels = host.split(b".")
    return [b".".join(labels[first:]) for first in range(len(labels))] if host else []


def words(text: bytes) -> bytes:
    """The words in lower case, each between blanks."""
    matches = re.findall(rb"[a-z0-9\x80-\xff]+", text.lower())
    return b" " + b"".join(word + b" " for word in matches)


def occurring(patterns: list[bytes], text: bytes, whole: bool) -> list[bool]:
    spoken = words(text) if whole else words(text).replace(b" ", b"")
    return [pattern in spoken for pattern in patterns]
