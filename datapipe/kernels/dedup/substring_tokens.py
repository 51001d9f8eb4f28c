"""The tokens that `substring` compares: words, or bytes.

A word token is a run of letters, marks and digits, or a run of signs; in scripts without spaces, a
character. White space belongs to no token. With `by_bytes` every byte is a token, white space too.
"""

import sys
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.hashing import FNV_BASIS, fnv_step, mix64
from datapipe.kernels.text.unicode_classes import LETTER, MARK, NUMBER, SPACE, UNSPACED, class_table, codes_of, decode
from datapipe.kernels.types import UInt8s, input_record, read_only

_WHITE, _WORD, _LONE, _SIGN, _MORE = range(5)
_1 = np.uint64(1)
_JOINERS = [0x200C, 0x200D]


class TokenRules(NamedTuple):
    kinds: UInt8s  # `token_table()`
    by_bytes: bool  # whether every byte is a token; `kinds` is not used then


@lru_cache(maxsize=1)
def token_table() -> np.ndarray:
    """The kind of every code point, (0x110000,) uint8: white space, part of a word, a token by itself, a sign, an extender."""
    classes, unspaced = class_table(), codes_of(UNSPACED)
    table = np.full(sys.maxunicode + 1, _SIGN, np.uint8)
    table[(classes & (LETTER | NUMBER)) != 0] = _WORD
    table[ord("_")] = _WORD
    table[unspaced[table[unspaced] == _WORD]] = _LONE
    table[(classes & MARK) != 0] = _MORE
    table[_JOINERS] = _MORE
    table[classes == SPACE] = _WHITE
    return read_only(table)


def token_rules(by_bytes: bool) -> TokenRules:
    return input_record(TokenRules, (token_table(), by_bytes))


@inline
def _token(data, position, stop, kinds, kind, size) -> tuple[Any, Any]:
    """The hash and the stop of the token that begins at `position` with a character of `kind` and `size` bytes."""
    hashed, first = FNV_BASIS, _WORD if kind == _MORE else kind
    while True:
        for j in range(position, position + size):
            hashed = fnv_step(hashed, data[j])
        position += size
        if position == stop:
            break
        code, size = np.int64(data[position]), np.int64(1)
        if code >= 0x80:
            code, size = decode(data, position, stop)
        kind = kinds[code]
        if kind != _MORE and (kind != first or first == _LONE):
            break
    return mix64(hashed), position


@inline
def find_tokens(data, position, stop, rules, limit, starts, hashes) -> Any:
    """Writes the start bytes and hashes of the first `limit` tokens from `position` on; returns the number of tokens."""
    count, kinds = np.int64(0), rules.kinds
    if rules.by_bytes:
        count = min(limit, stop - position)
        for token in range(count):
            starts[token], hashes[token] = position + token, mix64(np.uint64(data[position + token]) + _1)
        return count
    while position < stop and count < limit:
        code, size = np.int64(data[position]), np.int64(1)
        if code >= 0x80:
            code, size = decode(data, position, stop)
        kind = kinds[code]
        if kind == _WHITE:
            position += size
            continue
        starts[count] = position
        hashes[count], position = _token(data, position, stop, kinds, kind, size)
        count += 1
    return count
