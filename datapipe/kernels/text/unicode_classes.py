"""Classes of code points, and the UTF-8 decoder that all kernels share.

    bytes  --decode-->  code point, size  --class_table()[code point]-->  one bit of LETTER, MARK, ... , OTHER

The classes are the major general categories of Python's Unicode database. White space is that of `str.split`.
"""

import sys
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.tables import stored_table
from datapipe.kernels.types import Int64s, Int64sOut, UInt8s, read_only

LETTER, MARK, NUMBER, PUNCTUATION, SYMBOL, SPACE, OTHER = 1, 2, 4, 8, 16, 32, 64
"""OTHER: controls, format characters, private use, and code points that the database does not know."""

CONTENT = LETTER | MARK | NUMBER | OTHER
"""A word with a character of these classes is more than punctuation and symbols."""

REPLACEMENT = 0xFFFD

UNSPACED = "E00-109F 1780-17FF 3005-3007 3041-309F 3400-4DBF 4E00-9FFF F900-FAFF 20000-31FFF"
"""Scripts without spaces: Thai, Lao, Tibetan, Myanmar, Khmer, ideographic marks, Hiragana, Han."""

_CLASS_OF_CATEGORY = {"L": LETTER, "M": MARK, "N": NUMBER, "P": PUNCTUATION, "S": SYMBOL}
_ASSIGNED = ((0, 0x40000), (0xE0000, 0xE1000))
"""All assigned characters outside private use; a test compares it with the database."""

MAY_CHANGE, JOINS, JOINED, CLASS_SHIFT = 1, 2, 4, 8  # In `composition_table`
_HANGUL_VOWELS, _HANGUL_FINALS = slice(0x1161, 0x1176), slice(0x11A8, 0x11C3)
"""Jamo that join the character before them by rule: no decomposition of the database has them."""


@stored_table
def class_table() -> np.ndarray:
    """The class of every code point: (0x110000,) uint8."""
    table = np.full(sys.maxunicode + 1, OTHER, np.uint8)
    for category, kind in _CLASS_OF_CATEGORY.items():
        table[_codes()[_categories()[:, 0] == ord(category)]] = kind
    for code in range(0x3001):  # the highest white space is U+3000
        if chr(code).isspace():
            table[code] = SPACE
    return read_only(table)


@lru_cache(maxsize=1)
def _codes() -> np.ndarray:
    """The code points of `_ASSIGNED`."""
    return np.concatenate([np.arange(start, stop, dtype="<u4") for start, stop in _ASSIGNED])


def _characters() -> str:
    return _codes().tobytes().decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=1)
def _categories() -> np.ndarray:
    """The two letters of each of these characters' category: (num_characters, 2) uint8."""
    return np.frombuffer("".join(map(unicodedata.category, _characters())).encode(), np.uint8).reshape(-1, 2)


@lru_cache(maxsize=4)
def _changed(form: Literal["NFC", "NFKC", "NFD", "NFKD"]) -> list[int]:
    """Which of these characters a normal form changes."""
    return [ord(character) for character in _characters() if not unicodedata.is_normalized(form, character)]


def codes_of(listed: str) -> np.ndarray:
    """The code points of ranges in hexadecimal: "41-5A 5F"."""
    ranges = [[int(edge, 16) for edge in span.split("-")] for span in listed.split()]
    return np.concatenate([np.arange(span[0], span[-1] + 1) for span in ranges])


@stored_table
def stable_table(form: Literal["NFC", "NFKC", "NFD", "NFKD"]) -> np.ndarray:
    """The code points that a normal form keeps beside any other character: (0x110000,) uint8, 1 where stable. A text of
    stable characters is in normal form. Characters that the database does not know are never stable."""
    table = np.zeros(sys.maxunicode + 1, np.uint8)
    is_known = (_categories() != np.frombuffer(b"Cn", np.uint8)).any(axis=1)
    table[_codes()] = is_known
    # only marks have a combining class
    reordered = [code for code in np.flatnonzero(class_table() == MARK).tolist() if unicodedata.combining(chr(code))]
    table[_changed(form) + reordered] = 0
    if form in ("NFC", "NFKC"):
        table[[second for _, _, second in _canonical_pairs()]] = 0
        table[_HANGUL_VOWELS] = 0
        table[_HANGUL_FINALS] = 0
    return read_only(table)


@stored_table
def composition_table() -> np.ndarray:
    """What every code point does in NFC: (0x110000,) uint16, roles and from `CLASS_SHIFT` on the combining class.

    MAY_CHANGE: it changes, or may join what is before it. JOINS: no mark, and joins the character
    before it if that is JOINED. A text without MAY_CHANGE, without JOINS directly behind JOINED,
    and with marks in the order of their classes is in NFC: the quick check of UAX #15.
    """
    composed = [pair for code, *pair in _canonical_pairs() if unicodedata.is_normalized("NFC", chr(code))]
    seconds = {second for _, second in composed}
    table = np.where(stable_table("NFC") == 0, MAY_CHANGE, 0).astype(np.uint16)
    for code in np.flatnonzero(table * (class_table() != OTHER)).tolist():
        combining, may_join = unicodedata.combining(chr(code)), code in seconds
        is_jamo = _HANGUL_VOWELS.start <= code < _HANGUL_FINALS.stop
        if not is_jamo and unicodedata.normalize("NFC", chr(code)) == chr(code) and not (combining and may_join):
            table[code] = combining << CLASS_SHIFT | (JOINS if may_join else 0)
    table[sorted({first for first, second in composed if not unicodedata.combining(chr(second))})] |= JOINED
    return read_only(table)


@stored_table
def plain_sizes() -> np.ndarray:
    """Bytes of the characters that begin with each byte if `composition_table` is 0 for all of them, else 0: (256,) uint8."""
    sizes = np.zeros(256, np.uint8)
    for size, first, start, stop in ((1, 0, 0, 0x80), (2, 0xC0, 0x80, 0x800), (3, 0xE0, 0x800, 0x10000)):
        leads = first + (np.arange(start, stop) >> 6 * (size - 1))
        sizes[np.unique(leads)] = size
        sizes[leads[composition_table()[start:stop] != 0]] = 0
    return read_only(sizes)


def _canonical_pairs() -> Iterator[tuple[int, int, int]]:
    """The characters with a decomposition of two code points and no compatibility tag, "0065 0301", and those two."""
    for code in _changed("NFD"):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and parts[0][0] != "<":
            yield code, int(parts[0], 16), int(parts[1], 16)


@inline
def is_continuation(byte) -> Any:
    """Whether a byte is a continuation byte: in a character, neither its first byte nor ASCII."""
    return byte & 0xC0 == 0x80


@inline
def ahead(data, position, end, num_chars) -> Any:
    """The byte `num_chars` characters behind `position`, where one begins, not behind `end`."""
    while position < end:
        if not is_continuation(data[position]):
            if num_chars <= 0:
                break
            num_chars -= 1
        position += 1
    return position


@inline
def decode(data, offset, stop) -> tuple[Any, Any]:
    """The character at `offset` and its size; (REPLACEMENT, 1) if malformed or beyond `stop`."""
    code = np.int64(data[offset])
    if code < 0x80:
        return code, 1
    if code < 0xC2 or code > 0xF4:
        return REPLACEMENT, 1
    size = 2 if code < 0xE0 else (3 if code < 0xF0 else 4)
    if offset + size > stop:
        return REPLACEMENT, 1
    code &= 0x7F >> size
    for index in range(offset + 1, offset + size):
        byte = np.int64(data[index])
        if byte & 0xC0 != 0x80:
            return REPLACEMENT, 1
        code = (code << 6) | (byte & 0x3F)
    if size == 3 and (code < 0x800 or 0xD800 <= code < 0xE000):
        return REPLACEMENT, 1
    if size == 4 and (code < 0x10000 or code > 0x10FFFF):
        return REPLACEMENT, 1
    return code, size


@inline
def decode_before(data, stop, start) -> tuple[Any, Any]:
    """The character from `start` that ends at `stop`, and its size; (REPLACEMENT, 1) for none."""
    first = stop - 1
    if data[first] < 0x80:
        return np.int64(data[first]), 1
    while first > start and stop - first < 4 and data[first] & 0xC0 == 0x80:
        first -= 1
    code, size = decode(data, first, stop)
    if size != stop - first:  # the last byte belongs to no character
        return REPLACEMENT, 1
    return code, size


@inline
def write_character(code, out, written) -> Any:
    """Writes a code point as UTF-8; returns the number of bytes written by then."""
    if code < 0x80:
        out[written] = code
        return written + 1
    if code < 0x800:
        out[written], out[written + 1] = 0xC0 | code >> 6, 0x80 | code & 0x3F
        return written + 2
    if code < 0x10000:
        out[written], out[written + 1], out[written + 2] = 0xE0 | code >> 12, 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
        return written + 3
    out[written], out[written + 1] = 0xF0 | code >> 18, 0x80 | code >> 12 & 0x3F
    out[written + 2], out[written + 3] = 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
    return written + 4


@kernel
def prefix_stops(offsets: Int64s, data: UInt8s, num_chars: int, stops: Int64sOut) -> None:
    """The byte after the first `num_chars` characters of every text of UTF-8, or its end: `stops` (num_docs,) int64."""
    for document in range(len(offsets) - 1):
        stops[document] = ahead(data, offsets[document], offsets[document + 1], num_chars)
