"""The tokens of `substring`, whose runs are compared: words, or bytes.

A token is a run of letters, marks and digits, or a run of signs; of scripts without spaces each character is one. White space
parts tokens and counts for nothing. Or every byte is a token.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.hashing import FNV_BASIS, fnv_step, mix64
from datapipe.kernels.text.unicode_classes import SPACE, class_table, decode
from datapipe.kernels.text.unicode_words import ALONE, EXTENDS, JOINS, role_table
from datapipe.kernels.types import UInt8s, input_record

_WHITE, _WORD, _LONE, _SIGN, _MORE = range(5)
_1 = np.uint64(1)


class TokenRules(NamedTuple):
    """What a token is, an input of kernels: `token_table`, and whether every byte is one instead."""

    kinds: UInt8s
    by_bytes: bool


@lru_cache(maxsize=1)
def token_table() -> np.ndarray:
    """What every code point does to tokens: (0x110000,) uint8."""
    roles = role_table()
    table = np.full(sys.maxunicode + 1, _SIGN, np.uint8)
    table[(roles & JOINS) != 0] = _WORD
    table[(roles & ALONE) != 0] = _LONE
    table[(roles & EXTENDS) != 0] = _MORE
    table[class_table() == SPACE] = _WHITE
    table.flags.writeable = False
    return table


def token_rules(by_bytes: bool) -> TokenRules:
    """Every byte a token, or words."""
    return input_record(TokenRules, (token_table(), by_bytes))


@inline
def _token(data, at, stop, kinds, kind, size) -> tuple[Any, Any]:
    """The hash of the token that begins at `at` with a character of `kind` and `size`, and where it stops."""
    hashed, first = FNV_BASIS, _WORD if kind == _MORE else kind
    while True:
        for j in range(at, at + size):
            hashed = fnv_step(hashed, data[j])
        at += size
        if at == stop:
            break
        code, size = np.int64(data[at]), np.int64(1)
        if code >= 0x80:
            code, size = decode(data, at, stop)
        kind = kinds[code]
        if kind != _MORE and (kind != first or first == _LONE):
            break
    return mix64(hashed), at


@inline
def find_tokens(data, at, stop, rules, limit, starts, hashes) -> Any:
    """Fills where the first tokens from `at` on begin, and their hashes; returns how many, at most `limit`."""
    count, kinds = np.int64(0), rules.kinds
    if rules.by_bytes:
        count = min(limit, stop - at)
        for place in range(count):
            starts[place], hashes[place] = at + place, mix64(np.uint64(data[at + place]) + _1)
        return count
    while at < stop and count < limit:
        code, size = np.int64(data[at]), np.int64(1)
        if code >= 0x80:
            code, size = decode(data, at, stop)
        kind = kinds[code]
        if kind == _WHITE:
            at += size
            continue
        starts[count] = at
        hashes[count], at = _token(data, at, stop, kinds, kind, size)
        count += 1
    return count
