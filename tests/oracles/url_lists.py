"""Membership in lists, by Python's own sets and substrings."""

from __future__ import annotations

import re

from tests.oracles.hashing import fnv, mix


def hashed(text: bytes) -> int:
    """FNV-1a from the last byte to the first, finished by splitmix64; 1 replaces 0."""
    return mix(fnv(reversed(text))) or 1


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
