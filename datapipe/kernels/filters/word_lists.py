"""Words of lists in texts: how many hits a document has, and how many of its words they are.

    text  ->  its words, folded (`dedup/case_folding.py`)  ->  the hash of each  ->  a filter of bits  ->  entries

An entry is one word or several in a row, whatever stands between them. Case, accents in one code
point or two, signs and white space do not count. In scripts without spaces each character is a
word. The longest entry that begins at a word counts, and the search continues after it. Most words
begin no entry: the filter, which fits into the first cache, answers for nearly all of them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.dedup.case_folding import fold_texts, word_folding
from datapipe.kernels.dedup.minhash import hash_word
from datapipe.kernels.hashing import find_slot, table_of
from datapipe.kernels.types import Int32s, Int64s, Int64sOut, UInt8s, UInt64s, UInt64sOut, input_record, room_for

MOST_LISTS = 64  # Lists that can be distinguished: a bit of 64 for each
_FILTER_BITS = 18
_FILTER_SHIFT = np.uint64(64 - _FILTER_BITS)
_1, _7, _3 = np.uint64(1), np.uint64(7), np.uint64(3)


class WordLists(NamedTuple):
    """Entries by their first word: an input of kernels."""

    bits: UInt8s  # (2**18 / 8,), a bit for the upper bits of each first word's hash
    firsts: UInt64s  # an open-addressing table of the hashes of first words; a power of two
    # (2 * num_slots,), of each slot the number of its first entry and of the one after its last
    groups: Int32s
    # (num_entries + 1,), where the words after the first lie in `rest`; longest entries of a group first
    starts: Int64s
    rest: UInt64s  # hashes of words
    lists: UInt64s  # (num_entries,), a bit for each list that holds the entry


class ListedOut(NamedTuple):
    """Outputs of `find_listed`, (num_docs,) int64 each: entries that were found, words in them, and all words."""

    hits: Int64sOut
    listed: Int64sOut
    words: Int64sOut


def word_hashes(text_offsets: np.ndarray, data: np.ndarray) -> list[tuple[int, ...]]:
    """The hashes of the words of each text, for lists: no fast way for documents."""
    offsets, words = fold_texts(text_offsets, data, word_folding())
    hashes, counts = np.empty(int(offsets[-1]), np.uint64), np.empty(len(text_offsets) - 1, np.int64)
    hash_words(offsets, words, hashes, counts)
    ends = np.cumsum(counts)
    return [tuple(hashes[end - count : end].tolist()) for end, count in zip(ends.tolist(), counts.tolist())]


def word_lists(entries: Mapping[tuple[int, ...], int]) -> WordLists:
    """The tables of entries, each a sequence of word hashes with the bits of the lists that hold it."""
    by_first: dict[int, list[tuple[int, ...]]] = {}
    for entry in sorted(entries, key=lambda entry: (-len(entry), entry)):
        by_first.setdefault(entry[0], []).append(entry)
    firsts, slots = table_of([*by_first])
    groups = np.zeros(2 * len(firsts), np.int32)
    bits = np.zeros(1 << _FILTER_BITS, np.bool_)
    starts, rest, lists = [0], list[int](), list[int]()
    for slot, (first, group) in zip(slots.tolist(), by_first.items(), strict=True):
        bits[first >> int(_FILTER_SHIFT)] = True
        groups[2 * slot], groups[2 * slot + 1] = len(lists), len(lists) + len(group)
        for entry in group:
            rest += entry[1:]
            starts.append(len(rest))
            lists.append(entries[entry])
    arrays = (firsts, groups, np.array(starts, np.int64), np.array(rest, np.uint64), np.array(lists, np.uint64))
    return input_record(WordLists, (np.packbits(bits, bitorder="little"), *arrays))


def count_listed(text_offsets: np.ndarray, data: np.ndarray, table: WordLists, masks: np.ndarray) -> ListedOut:
    """The hits of documents. `masks`: (num_docs,) uint64, the bits of the lists that count for each document."""
    offsets, words = fold_texts(text_offsets, data, word_folding())
    out = room_for(ListedOut, len(masks))
    find_listed(offsets, words, table, masks, out)
    return out


@inline
def _next_word(words, position, stop) -> Any:
    while position < stop and words[position] == 0:
        position += _1
    return position


@inline
def _entry_length(words, position, stop, start, end, rest) -> Any:
    """The stop of the words from `position` on if they are those of an entry, else 0."""
    for place in range(start, end):
        position = _next_word(words, position, stop)
        if position >= stop:
            return np.uint64(0)
        hashed, position = hash_word(words, position)
        if hashed != rest[place]:
            return np.uint64(0)
    return position


@kernel
def find_listed(offsets: Int64s, words: UInt8s, table: WordLists, masks: UInt64s, out: ListedOut) -> None:
    """Counts the entries of lists in documents; see `count_listed`. `words` are those of `case_folding.fold_texts`."""
    bits, firsts, groups, starts, rest, lists = table
    for doc in range(len(offsets) - 1):
        hits, listed, num_words = np.int64(0), np.int64(0), np.int64(0)
        position, stop, mask = np.uint64(offsets[doc]), np.uint64(offsets[doc + 1]), masks[doc]
        position = _next_word(words, position, stop)
        while position < stop:
            hashed, position = hash_word(words, position)
            num_words += 1
            place = hashed >> _FILTER_SHIFT
            if (np.uint64(bits[place >> _3]) >> (place & _7)) & _1:
                slot = find_slot(firsts, len(firsts), hashed)
                for entry in range(groups[2 * slot], groups[2 * slot + 1]):
                    if lists[entry] & mask:
                        end = _entry_length(words, position, stop, starts[entry], starts[entry + 1], rest)
                        if end:
                            hits += 1
                            listed += starts[entry + 1] - starts[entry] + 1
                            num_words += starts[entry + 1] - starts[entry]
                            position = end
                            break
            position = _next_word(words, position, stop)
        out.hits[doc], out.listed[doc], out.words[doc] = hits, listed, num_words


@kernel
def hash_words(offsets: Int64s, words: UInt8s, hashes: UInt64sOut, counts: Int64sOut) -> None:
    """Writes the hashes of words of `case_folding.fold_texts`, and their number in each text."""
    written = 0
    for doc in range(len(offsets) - 1):
        before = written
        stop = np.uint64(offsets[doc + 1])
        position = _next_word(words, np.uint64(offsets[doc]), stop)
        while position < stop:
            hashed, position = hash_word(words, position)
            hashes[written] = hashed
            written += 1
            position = _next_word(words, position, stop)
        counts[doc] = written - before
