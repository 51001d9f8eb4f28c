"""Words as decontamination compares them: without case, accents, punctuation and typographic variants.

    "Café № 12: «L’ＡＢＣ»"  ->  cafe  12  l  abc

A word is a run of letters, digits and vowel signs of any script (`dedup/word_characters.py`, Unicode 14.0). Every character
is replaced by its compatibility decomposition without case and without combining marks, so NFC, NFD, full-width and
upper-case texts have the same words. Symbols for letters, such as №, become these letters; the dotless ı is "i", for
Turkish capitals; syllables of Hangul become jamo.

In scripts without spaces each character is a word and weighs less than a word of other scripts
(`WHOLE`): two ideographs, or four letters of Thai, Lao, Khmer, Myanmar, Tibetan or Hiragana, weigh
as much as one (words of Chinese have 1.5 to 2 characters, of Thai about four). Where a dictionary has put
spaces between words (`text/spaced_words.py`), the table `by_spaces` takes these as words, each of them `WHOLE`.
"""

import sys
from typing import Any, NamedTuple
from unicodedata import combining, normalize

import numpy as np

from datapipe.kernels import inline
from datapipe.kernels.dedup.word_characters import ALONE, IGNORED, MARK, UNASSIGNED, known_classes, word_table
from datapipe.kernels.hashing import FNV_BASIS, mix64
from datapipe.kernels.tables import stored_table
from datapipe.kernels.text.unicode_classes import decode
from datapipe.kernels.types import Int32s, input_record

WHOLE = 4  # the weight of a word of a script with spaces
IDEOGRAPH, SYLLABLE = 2, 1
"""The weights of words of one character: of Han, and of the other scripts without spaces."""

_DROPPED = -1
_KIND_SHIFT, _MARK_KIND = 21, 3
_CODE_MASK = (1 << _KIND_SHIFT) - 1
_HAN = ((0x3005, 0x3008), (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x32000))
_UNCHANGED = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xE000, 0xF900), (0x17000, 0x18D00), (0x20000, 0x2F800), (0x30000, 0x110000))
"""Ideographs and private use, which have neither case nor decompositions. A test checks each."""

_SAME = {"ı": "i"}
_PRIME = np.uint64(0x9E3779B97F4A7C15)


class WordTable(NamedTuple):
    """What every code point is in a word: an input of kernels."""

    # (0x110000,). 0: ends a word. -1: left out. Above: the folded code point, with its kind above 21
    # bits: 0 for letters of scripts with spaces, the weight of a word of one character, or 3 for a mark.
    # Below -1: -p, where `expansions[p]` is the number of code points that follow, with their kind.
    codes: Int32s
    expansions: Int32s


def folded(character: str) -> str:
    """The folded form of one character; perhaps empty."""
    parts = normalize("NFKD", normalize("NFKD", character).casefold())
    return "".join(_SAME.get(part, part) for part in parts if not combining(part))


@stored_table
def words_table(by_spaces: bool = False) -> WordTable:
    """The table. `by_spaces`: in no script a character is a word by itself."""
    classes, known = word_table() & np.uint8(~ALONE & 0xFF if by_spaces else 0xFF), known_classes()
    kinds = _kinds(classes)
    codes, expansions = np.arange(sys.maxunicode + 1, dtype=np.int32), [0, 0]
    codes |= kinds << _KIND_SHIFT
    codes[classes == 0], codes[classes == IGNORED] = 0, _DROPPED
    changes = (known != UNASSIGNED) & (classes != IGNORED)
    for start, stop in ((0, ord("0")), *_UNCHANGED):
        changes[start:stop] = False
    for code in np.flatnonzero(changes).tolist():
        parts = [ord(part) for part in folded(chr(code))]
        if classes[code] == 0 and not all(classes[part] for part in parts):
            continue
        parts = [part for part in parts if classes[part] not in (0, IGNORED)]
        kind = _joint_kind([int(kinds[part]) for part in parts])
        if len(parts) == 1:
            codes[code] = parts[0] | kind << _KIND_SHIFT
        elif not parts:
            codes[code] = _DROPPED
        elif kind >= 0:
            codes[code] = -len(expansions)
            expansions += [len(parts) | kind << _KIND_SHIFT, *parts]
    return input_record(WordTable, (codes, np.array(expansions, np.int32)))


def _kinds(classes: np.ndarray) -> np.ndarray:
    kinds = np.where(classes & ALONE, SYLLABLE, 0).astype(np.int32)
    for start, stop in _HAN:
        kinds[start:stop][kinds[start:stop] == SYLLABLE] = IDEOGRAPH
    kinds[(classes & MARK) != 0] = _MARK_KIND
    return kinds


def _joint_kind(kinds: list[int]) -> int:
    """The kind of several code points in place of one; -1 where they are several words."""
    first, others = (kinds[0], set(kinds[1:])) if kinds else (0, set[int]())
    if first in (IDEOGRAPH, SYLLABLE):
        return first if others <= {_MARK_KIND} else -1
    return first if others <= ({_MARK_KIND} if first == _MARK_KIND else {0, _MARK_KIND}) else -1


@inline
def _absorb(hashed, code) -> Any:
    return (hashed ^ np.uint64(code)) * _PRIME


@inline
def next_word(data, position, stop, codes, expansions) -> tuple[Any, Any, Any, Any]:
    """The next word from `position` on: its hash, its weight (0 if none is left), its first byte, and the byte after it."""
    hashed, weight, start, end = FNV_BASIS, np.int64(0), position, position
    while position < stop:
        code, size = np.int64(data[np.uint64(position)]), np.int64(1)
        if code >= 0x80:
            code, size = decode(data, position, stop)
        character = np.int64(codes[np.uint64(code)])
        if character == 0:
            if weight:
                break
        elif character != _DROPPED:
            head = character if character > 0 else np.int64(expansions[-character])
            kind = head >> _KIND_SHIFT
            if kind == 0:
                if weight == 0:
                    start, weight = position, np.int64(WHOLE)
                elif weight < WHOLE:
                    break
            elif kind != _MARK_KIND:
                if weight:
                    break
                start, weight = position, kind
            if character > 0:
                hashed = _absorb(hashed, character & _CODE_MASK) if weight else hashed
                end = position + size
            elif weight:  # a mark without a character before it is left out
                for index in range(1 - character, 1 - character + (head & _CODE_MASK)):
                    hashed = _absorb(hashed, expansions[index])
                end = position + size
        position += size
    return mix64(hashed), weight, start, end
