"""Measurements of `filter.gopher_quality`, from the words and lines of a batch.

    Words         ->  count_words       ->  (num_docs, 5)   words, words with content, words with letters; characters
    bytes         ->  count_word_starts ->  (num_docs,)     words of fastText that begin with a letter or a digit
    bytes         ->  count_symbols     ->  (num_docs, 3)   `#`, `...` and `…`, `. . .`
    Words, bytes  ->  count_stop_words  ->  (num_docs, 2)   different stop words, occurrences of stop words
    Lines, bytes  ->  count_lines       ->  (num_docs, 2)   lines that start with a bullet, lines that trail off

A word has content where it is more than punctuation and symbols. All measurements are counts; each profile divides them.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.arrays import NO_BITS, eight_times, find_any
from datapipe.kernels.hashing import FNV_BASIS, find_slot, fnv_step, hash_of, mix64, table_of
from datapipe.kernels.text.unicode_classes import (
    CONTENT,
    LETTER,
    NUMBER,
    PUNCTUATION,
    SYMBOL,
    class_table,
    decode,
    decode_before,
)
from datapipe.kernels.text.words import Lines, Words
from datapipe.kernels.types import Int64MatrixOut, Int64s, Int64sOut, UInt8s, UInt64s, input_record

NUM_WORDS, NUM_CONTENT, CONTENT_CHARS, NUM_LETTERS, NUM_CHARS = range(5)  # columns of `word_counts`
HASHES, ELLIPSES, SPACED_ELLIPSES = range(3)  # columns of `symbol_counts`
BULLETS, TRAILING = range(2)  # columns of `line_counts`
EXACT, FOLDED, STRIPPED = range(3)
"""Comparison with stop words. FOLDED: in any case; one of more than 6 characters in lower case,
capitalised or in capitals. STRIPPED: like FOLDED, without signs around."""

_HASH, _DOT, _SPACE = (ord(sign) for sign in "#. ")
_SYMBOLS = eight_times(b"#.\xe2")
_ELLIPSIS = ord("…")
_LONGEST_IN_ANY_CASE = 6  # 64 forms each; Gopher's stop words have at most 4 characters
_SEPARATES = np.zeros(256, np.bool_)
_SEPARATES[np.frombuffer(b" \n\r\t\v\f\0", np.uint8)] = True
"""Bytes that separate the words of fastText."""


def word_counts(words: Words) -> np.ndarray:
    """(num_docs, 5) int64: words; words with content, and their characters; words with a letter; all characters."""
    out = np.empty((len(words.doc_offsets) - 1, 5), np.int64)
    count_words(words, out)
    return out


def word_start_counts(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """(num_docs,) int64: fastText's words (between white space, NUL) that begin with an alnum."""
    out = np.empty(len(offsets) - 1, np.int64)
    count_word_starts(offsets, data, class_table(), out)
    return out


def symbol_counts(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """(num_docs, 3) int64: `#`; `...` and `…`, where every third dot of a run ends one; `. . .`, without overlaps."""
    out = np.empty((len(offsets) - 1, 3), np.int64)
    count_symbols(offsets, data, out)
    return out


def stop_word_counts(
    words: Words, data: np.ndarray, lists: Sequence[tuple[str, ...]], list_of_doc: np.ndarray, compare: int
) -> np.ndarray:
    """(num_docs, 2) int64: number of distinct stop words, and number of words that are stop words. `lists`: stop words in lower
    case, of which document i has those of `lists[list_of_doc[i]]`, (num_docs,) int64."""
    tables = stop_word_tables(lists, list_of_doc, compare != EXACT)
    out = np.empty((len(words.doc_offsets) - 1, 2), np.int64)
    seen = np.zeros(max(map(len, lists)), np.int64)
    count_stop_words(words, data, class_table(), tables, compare == STRIPPED, seen, out)
    return out


def line_counts(lines: Lines, data: np.ndarray, bullets: str, spaced: bool) -> np.ndarray:
    """(num_docs, 2) int64: lines that start with one of `bullets`; lines that end in `...`, `…` or, where `spaced`, `. . .`."""
    out = np.empty((len(lines.doc_offsets) - 1, 2), np.int64)
    count_lines(lines, data, np.array([ord(sign) for sign in bullets], np.int64), spaced, out)
    return out


class StopWords(NamedTuple):
    """Hash tables of lists of stop words, one behind the other: an input of kernels."""

    keys: UInt64s  # (num_slots,), 0 where free
    numbers: Int64s  # (num_slots,), the word of each key, in its list
    starts: Int64s  # (num_lists + 1,), the first slot of each table
    longest: Int64s  # (num_lists,), bytes of the longest word
    list_of_doc: Int64s  # (num_docs,)


def stop_word_tables(lists: Sequence[tuple[str, ...]], list_of_doc: np.ndarray, folded: bool) -> StopWords:
    """The tables of lists of stop words in lower case; where `folded`, also of their other forms."""
    tables = [_table_of(stop_words, folded) for stop_words in lists]
    keys, numbers, longest = zip(*tables)
    starts = np.cumsum([0, *map(len, keys)])
    return input_record(StopWords, (np.concatenate(keys), np.concatenate(numbers), starts, np.array(longest), list_of_doc))


@lru_cache(maxsize=4096)
def _table_of(stop_words: tuple[str, ...], folded: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """The keys and the words of them, (num_slots,) each, and the bytes of the longest word."""
    forms = {word: number for number, word in enumerate(stop_words)}
    if folded:
        for number, word in enumerate(stop_words):
            for form in _forms_of(word):
                forms.setdefault(form, number)
    keys, slots = table_of([hash_of(word.encode()) for word in forms])
    numbers = np.zeros(len(keys), np.int64)
    numbers[slots] = list(forms.values())
    return keys, numbers, max((len(word.encode()) for word in forms), default=0)


def _forms_of(word: str) -> list[str]:
    """The forms of a word with capitals; of a long one those at its start, and all."""
    forms = [word.capitalize(), word.title(), word.upper()]
    if len(word) <= _LONGEST_IN_ANY_CASE:
        forms += ["".join(letters) for letters in product(*({letter, letter.upper()} for letter in word))]
    return forms


@kernel
def count_words(words: Words, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, 5); see `word_counts`."""
    doc_offsets, _, _, _, chars, flags = words
    for doc in range(len(doc_offsets) - 1):
        num_content, content_chars, num_letters, num_chars = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        for word in range(doc_offsets[doc], doc_offsets[doc + 1]):
            is_content = np.int64(flags[word] & CONTENT != 0)
            num_content += is_content
            content_chars += is_content * chars[word]
            num_letters += np.int64(flags[word] & LETTER != 0)
            num_chars += chars[word]
        out[doc, NUM_WORDS], out[doc, NUM_CONTENT] = doc_offsets[doc + 1] - doc_offsets[doc], num_content
        out[doc, CONTENT_CHARS], out[doc, NUM_LETTERS], out[doc, NUM_CHARS] = content_chars, num_letters, num_chars


@kernel
def count_word_starts(offsets: Int64s, data: UInt8s, classes: UInt8s, out: Int64sOut) -> None:
    """Fills `out` (num_docs,); see `word_start_counts`. `classes`: `unicode_classes.class_table`."""
    for doc in range(len(offsets) - 1):
        num_words, separated = np.int64(0), True
        for offset in range(offsets[doc], offsets[doc + 1]):
            separates = _SEPARATES[data[offset]]
            if separated and not separates:
                num_words += np.int64(classes[decode(data, offset, offsets[doc + 1])[0]] & (LETTER | NUMBER) != 0)
            separated = separates
        out[doc] = num_words


@kernel
def count_symbols(offsets: Int64s, data: UInt8s, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, 3); see `symbol_counts`."""
    for doc in range(len(offsets) - 1):
        offset, stop = offsets[doc], offsets[doc + 1]
        num_hashes, num_ellipses, num_spaced = np.int64(0), np.int64(0), np.int64(0)
        dots, spaced = np.int64(0), np.int64(0)
        offset = find_any(data, offset, stop, _SYMBOLS, NO_BITS)
        while offset < stop:
            byte = data[offset]
            if byte == _DOT:
                dots = dots + 1 if offset > offsets[doc] and data[offset - 1] == _DOT else np.int64(1)
                follows = offset - 1 > offsets[doc] and data[offset - 1] == _SPACE and data[offset - 2] == _DOT
                spaced = spaced + 1 if follows else np.int64(1)
                num_ellipses += np.int64(dots % 3 == 0)
                num_spaced += np.int64(spaced % 3 == 0)
            elif byte == _HASH:
                num_hashes += 1
            elif decode(data, offset, stop)[0] == _ELLIPSIS:
                num_ellipses += 1
            offset = find_any(data, offset + 1, stop, _SYMBOLS, NO_BITS)
        out[doc, HASHES], out[doc, ELLIPSES], out[doc, SPACED_ELLIPSES] = num_hashes, num_ellipses, num_spaced


@inline
def _without_signs(data, start, stop, classes) -> tuple[Any, Any]:
    """The part of a word from the first to the last character that is neither punctuation nor symbol."""
    while start < stop:
        code, size = decode(data, start, stop)
        if classes[code] & CONTENT:
            break
        start += size
    while start < stop:
        code, size = np.int64(data[stop - 1]), np.int64(1)
        if code >= 0x80:
            code, size = decode_before(data, stop, start)
        if classes[code] & CONTENT:
            break
        stop -= size
    return start, stop


@kernel
def count_stop_words(
    words: Words, data: UInt8s, classes: UInt8s, tables: StopWords, strip: bool, seen: Int64sOut, out: Int64MatrixOut
) -> None:
    """Fills `out` (num_docs, 2); see `stop_word_counts`. `strip`: whether signs around a word are ignored.
    `seen`: (words of the longest list,) scratch, zeros: the last document, from 1, with each stop word."""
    doc_offsets, starts, lengths, hashes, _, flags = words
    for doc in range(len(doc_offsets) - 1):
        number = tables.list_of_doc[doc]
        first_slot, stop_slot, longest = tables.starts[number], tables.starts[number + 1], tables.longest[number]
        keys, numbers = tables.keys[first_slot:stop_slot], tables.numbers[first_slot:stop_slot]
        num_different, num_words = np.int64(0), np.int64(0)
        for word in range(doc_offsets[doc], doc_offsets[doc + 1]):
            start, size, key = starts[word], np.int64(lengths[word]), hashes[word]
            if strip and flags[word] & LETTER and flags[word] & (PUNCTUATION | SYMBOL):
                start, stop = _without_signs(data, start, start + size, classes)
                size, hashed = stop - start, FNV_BASIS
                for j in range(start, min(stop, start + longest)):
                    hashed = fnv_step(hashed, data[j])
                key = mix64(hashed)
            if size > longest:
                continue
            slot = find_slot(keys, len(keys), key)
            if keys[slot] == 0:
                continue
            num_words += 1
            num_different += np.int64(seen[numbers[slot]] != doc + 1)
            seen[numbers[slot]] = doc + 1
        out[doc, 0], out[doc, 1] = num_different, num_words


@kernel
def count_lines(lines: Lines, data: UInt8s, bullets: Int64s, spaced: bool, out: Int64MatrixOut) -> None:
    """Fills `out` (num_docs, 2); see `line_counts`. `bullets`: (num_bullets,) code points."""
    doc_offsets, starts, lengths, _, _, _ = lines
    for doc in range(len(doc_offsets) - 1):
        num_bullets, num_trailing = np.int64(0), np.int64(0)
        for line in range(doc_offsets[doc], doc_offsets[doc + 1]):
            start, stop = starts[line], starts[line] + lengths[line]
            first = decode(data, start, stop)[0]
            for bullet in bullets:
                num_bullets += np.int64(first == bullet)
            if stop - start >= 3:
                trails = data[stop - 3] == _DOT and data[stop - 2] == _DOT and data[stop - 1] == _DOT
                trails = trails or decode(data, stop - 3, stop)[0] == _ELLIPSIS
                if spaced and stop - start >= 5 and data[stop - 1] == _DOT:
                    ends = data[stop - 2] == _SPACE and data[stop - 3] == _DOT and data[stop - 4] == _SPACE
                    trails = trails or (ends and data[stop - 5] == _DOT)
                num_trailing += np.int64(trails)
        out[doc, BULLETS], out[doc, TRAILING] = num_bullets, num_trailing
