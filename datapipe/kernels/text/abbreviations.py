"""Abbreviations: words whose full stops end no sentence.

The list holds the abbreviations with a full stop among spaCy's English exceptions: facts of its
`lang/en/tokenizer_exceptions.py`. Emoticons with dots and IP addresses are left out: they do not change whether a document
reaches a limit of a few sentences.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from datapipe.kernels import inline

# fmt: off
ABBREVIATIONS = (
    "Adm.", "Ak.", "Ala.", "Apr.", "Ariz.", "Ark.", "Aug.", "Bros.", "Calif.", "Co.", "Colo.", "Conn.", "Corp.", "D.C.",
    "Dec.", "Del.", "Dr.", "E.G.", "E.g.", "Feb.", "Fla.", "Ga.", "Gen.", "Gov.", "I.E.", "I.e.", "Ia.", "Id.", "Ill.", "Inc.",
    "Ind.", "Jan.", "Jr.", "Jul.", "Jun.", "Kan.", "Kans.", "Ky.", "La.", "Ltd.", "Mar.", "Mass.", "Md.", "Messrs.", "Mich.",
    "Minn.", "Miss.", "Mo.", "Mont.", "Mr.", "Mrs.", "Ms.", "Mt.", "N.C.", "N.D.", "N.H.", "N.J.", "N.M.", "N.Y.", "Neb.",
    "Nebr.", "Nev.", "Nov.", "Oct.", "Okla.", "Ore.", "Pa.", "Ph.D.", "Prof.", "Rep.", "Rev.", "S.C.", "Sen.", "Sep.", "Sept.",
    "St.", "Tenn.", "Va.", "Wash.", "Wis.", "a.m.", "co.", "e.g.", "i.e.", "p.m.", "v.s.", "vs.", "Wed.", "wed.", "ä.",
    "ö.", "ü.",
)
# fmt: on
MOST_BYTES = 8
"""Bytes of the longest abbreviation, including its full stop."""
_BEFORE_NOON, _AFTER_NOON = (int.from_bytes(one, "big") for one in (b"a.m.", b"p.m."))
_DOT, _DASH = (ord(sign) for sign in ".-")
_ELLIPSIS_END = "…".encode()[-1]
_MOST_DASHES = 3
_BREAKS = np.zeros(256, np.uint8)
"""Bytes at which spaCy splits a word where letters follow: the last bytes of – — …, and - , : < > = / ~ ."""
_BREAKS[np.frombuffer(b"-,:<>=/~\x93\x94\xa6", np.uint8)] = 1


@lru_cache(maxsize=1)
def abbreviation_table() -> np.ndarray:
    """The abbreviations, each packed into a number, ascending: (num_abbreviations,) int64."""
    table = np.sort(np.array([int.from_bytes(abbreviation.encode(), "big") for abbreviation in ABBREVIATIONS], np.int64))
    table.flags.writeable = False
    return table


@inline
def is_exception(data, first, last, abbreviations) -> Any:
    """Whether [first, last) is an abbreviation including its full stop."""
    return last - first > 1 and data[last - 1] == _DOT and _is_abbreviation(data, first, last - 1, abbreviations)


@inline
def ends_in_abbreviation(data, first, dot, abbreviations) -> Any:
    """Whether the last part of the word [first, dot), split at hyphens and similar signs, is an abbreviation."""
    if dot - first >= 2 and is_digit(data[dot - 2]) and _is_unit(data[dot - 1]):
        return True  # the tokenizer separates number and unit; a unit and its full stop are a small letter and its full stop
    start = dot
    while start > first and dot - start < MOST_BYTES + 2:
        byte = data[start - 1]
        if byte != _DOT and not is_digit(byte) and not 0x61 <= byte | 0x20 <= 0x7A:
            break
        start -= 1
    if start > first and not _splits_before(data, first, start):
        return False
    return _is_abbreviation(data, start, dot, abbreviations)


@inline
def _splits_before(data, first, start) -> Any:
    """Whether spaCy splits a word before `start`: after an ellipsis, or after a sign with a letter or a digit before it."""
    sign = start - 1
    if not _BREAKS[data[sign]]:
        return False
    if data[sign] >= 0x80:
        sign -= 2
        if sign < first or data[sign] != 0xE2 or data[sign + 1] != 0x80:
            return False
        if data[start - 1] == _ELLIPSIS_END:
            return True
    while data[sign] == _DASH and start - sign < _MOST_DASHES and sign > first and data[sign - 1] == _DASH:
        sign -= 1
    return sign > first and (is_alnum(data[sign - 1]) or data[sign - 1] >= 0x80)


@inline
def _is_abbreviation(data, first, dot, abbreviations) -> Any:
    """Whether [first, dot) followed by a full stop is an abbreviation.

    An abbreviation is one of the list, a single small letter, or an hour with a.m. or p.m.
    """
    if dot - first == 1 and 0x61 <= data[first] <= 0x7A:
        return True
    hour, start = np.int64(0), first
    while start < dot and start - first < 2 and is_digit(data[start]) and hour + data[start] > 0x30:
        hour = hour * 10 + data[start] - 0x30
        start += 1
    if dot - start >= MOST_BYTES or hour > 12:
        return False
    packed = np.int64(0)
    for offset in range(start, dot):
        packed = (packed << 8) | np.int64(data[offset])
    packed = (packed << 8) | _DOT
    if hour:
        return packed == _BEFORE_NOON or packed == _AFTER_NOON
    index = np.searchsorted(abbreviations, packed)
    return index < len(abbreviations) and abbreviations[index] == packed


@inline
def _is_unit(byte) -> Any:
    """Whether a letter is a unit of measure: g, m or t."""
    return byte == 0x67 or byte == 0x6D or byte == 0x74


@inline
def is_alnum(byte) -> Any:
    """Whether a byte is an ASCII letter or digit. A chunk that begins with one begins with a word."""
    return is_digit(byte) or 0x61 <= byte | 0x20 <= 0x7A


@inline
def is_digit(byte) -> Any:
    return 0x30 <= byte <= 0x39
