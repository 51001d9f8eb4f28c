"""Where documents have n-grams of evaluation items, whole questions of short items, and their answers.

    words  ->  window of n words    ->  table  ->  matches of entries [0, num_grams)
           ->  window of a tail  ->  table  ->  the lengths of questions that end so  ->  table  ->  matches of questions

A short question is found by its last `TAIL_WORDS` words, its tail, which is rare in other text.
Each tail lists the lengths of the questions that end with it; runs of these lengths are looked up.

Both kernels return the number of rows. Where the outputs have less room, the caller calls again with more.
"""

from typing import Any, NamedTuple

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.decontaminate.folded_words import WHOLE, WordTable, next_word
from datapipe.kernels.decontaminate.word_runs import (
    ANSWER,
    GRAM,
    QUESTION,
    RADIX,
    RING,
    TAIL,
    GramTable,
    entry_of,
    mark_present,
    run_key,
)
from datapipe.kernels.hashing import find_slot, mix64, slot_of_key
from datapipe.kernels.types import Int32s, Int32sOut, Int64s, Int64sOut, UInt8s, UInt64s, UInt64sOut, filled

TAIL_WORDS = 4  # words of a tail, and the least of a question that is found as a whole
_0 = np.uint64(0)
_BLOCK = 128
"""Words whose keys are made before the first look-up: loads overlap, up to twice as fast."""

_ROOM = 2 * RING
_LAST = _ROOM - 1
"""The ring of prefix hashes holds a block and the longest run before it. Its size is a power of two."""


class Tails(NamedTuple):
    first: int  # the entry of the first tail; tail i is entry `first + i`. Below 0: there are none.
    offsets: Int64s  # (num_tails + 1,)
    lengths: Int32s  # words of the questions that end with each tail, each length once


class Matches(NamedTuple):
    """Runs of words of documents that are in the table, by their ends: an output of `find_grams`."""

    documents: Int64sOut  # (num_matches,)
    entries: Int64sOut  # (num_matches,)
    # starts, stops: (num_matches,), bytes in the data
    starts: Int64sOut
    stops: Int64sOut
    # (num_matches,), the number of the last word, counted over all documents with `weight` between two
    words: Int64sOut


def matches_of(offsets: np.ndarray, data: np.ndarray, words: WordTable, table: GramTable, tails: Tails, weight: int) -> Matches:
    """The matches of documents; parameters as for `find_grams`."""
    room = max(1024, int(offsets[-1] - offsets[0]) // 64)
    return filled(Matches, room, lambda out: find_grams(offsets, data, words, table, tails, weight, out))


@kernel
def find_grams(
    offsets: Int64s, data: UInt8s, words: WordTable, table: GramTable, tails: Tails, weight: int, out: Matches
) -> int:
    """Writes the matches of documents as far as there is room; returns their number.

    One loop nest above 40 lines: both steps of a block share the ring of prefix hashes. `words`:
    `words_table()`. `table`: keys of n-grams, tails and questions. `weight`: a window's least."""
    (codes, expansions), (bits, keys, entries) = words, table
    (first_tail, tail_offsets, lengths), (documents, items, starts, stops, numbers) = tails, out
    prefixes, weights, begins = np.zeros(_ROOM, np.uint64), np.zeros(_ROOM, np.int64), np.zeros(_ROOM, np.int64)
    grams, ends = np.zeros(_BLOCK, np.uint64), np.zeros(_BLOCK, np.uint64)
    firsts, ends_of = np.zeros(_BLOCK, np.int64), np.zeros(_BLOCK, np.int64)
    has_gram, has_tail = np.zeros(_BLOCK, np.uint8), np.zeros(_BLOCK, np.uint8)
    count, before, tail_weight = np.int64(0), np.int64(0), np.int64(WHOLE * TAIL_WORDS)
    for document in range(len(offsets) - 1):
        position, stop = offsets[document], offsets[document + 1]
        number, first, near, total, prefix = np.int64(0), np.int64(0), np.int64(0), np.int64(0), _0
        prefixes[0], weights[0], is_left = _0, 0, True
        while is_left:
            filled = np.int64(0)
            while filled < _BLOCK:
                hashed, word_weight, start, position = next_word(data, position, stop, codes, expansions)
                is_left = word_weight > 0
                if not is_left:
                    break
                number, total, prefix = number + 1, total + word_weight, prefix * RADIX + hashed
                place = number & _LAST
                prefixes[place], weights[place], begins[place] = prefix, total, start
                while first + 1 < number and total - weights[(first + 1) & _LAST] >= weight:
                    first += 1
                while near + 1 < number and total - weights[(near + 1) & _LAST] >= tail_weight:
                    near += 1
                is_run, is_end = total - weights[first & _LAST] >= weight, total - weights[near & _LAST] >= tail_weight
                grams[filled] = run_key(prefix, prefixes[first & _LAST], number - first, GRAM) if is_run else _0
                ends[filled] = run_key(prefix, prefixes[near & _LAST], number - near, TAIL) if is_end else _0
                firsts[filled], ends_of[filled] = begins[(first + 1) & _LAST], position
                filled += 1
            mark_present(bits, grams, filled, has_gram)
            mark_present(bits, ends, filled if first_tail >= 0 else np.int64(0), has_tail)
            for index in range(filled):
                word = number - filled + index + 1
                entry = entry_of(keys, entries, grams[index]) if has_gram[index] else np.int64(-1)
                if entry >= 0:
                    if count < len(documents):
                        documents[count], items[count], numbers[count] = document, entry, before + word
                        starts[count], stops[count] = firsts[index], ends_of[index]
                    count += 1
                tail = entry_of(keys, entries, ends[index]) if has_tail[index] else np.int64(-1)
                if tail < 0:
                    continue
                for each in range(tail_offsets[tail - first_tail], tail_offsets[tail - first_tail + 1]):
                    length = np.int64(lengths[each])
                    if length > word:
                        continue
                    earlier = prefixes[(word - length) & _LAST]
                    entry = entry_of(keys, entries, run_key(prefixes[word & _LAST], earlier, length, QUESTION))
                    if entry >= 0:
                        if count < len(documents):
                            documents[count], items[count], numbers[count] = document, entry, before + word
                            starts[count], stops[count] = begins[(word - length + 1) & _LAST], ends_of[index]
                        count += 1
        before += number + RING
    return int(count)


class Answers(NamedTuple):
    offsets: Int64s  # (num_questions + 1,)
    lengths: Int32s  # words of the answers of each question, each length once
    keys: UInt64s  # (num_slots,), the keys of questions with answers, see `pair_key`
    pairs: Int32s  # (num_slots,), the pair of each key


@inline
def pair_key(answer, question) -> Any:
    """The key of a question's number and the key of its answer, never 0."""
    key = mix64(answer ^ np.uint64(question + 1) * RADIX)
    return key if key != _0 else np.uint64(1)


@kernel
def fill_pairs(answers: UInt64s, questions: Int64s, keys: UInt64sOut, pairs: Int32sOut) -> None:
    """Fills the table of distinct pairs, which is all 0 before: the keys of answers, and their questions, (num_pairs,) each."""
    for pair in range(len(answers)):
        key = pair_key(answers[pair], questions[pair])
        slot = find_slot(keys, len(keys), key)
        keys[slot], pairs[slot] = key, pair


class Pairs(NamedTuple):
    """Questions and answers, (num_pairs,) int64: matches of the first, stops of the others."""

    matches: Int64sOut
    pairs: Int64sOut
    stops: Int64sOut


def pairs_of(
    matches: Matches, questions: np.ndarray, offsets: np.ndarray, data: np.ndarray, words: WordTable, answers: Answers
) -> Pairs:
    """The pairs of questions and answers; parameters as for `find_answers`, and the matches of the questions."""
    room, ends = max(64, 2 * len(questions)), offsets[1:][matches.documents]
    return filled(Pairs, room, lambda out: find_answers(questions, matches.stops, ends, data, words, answers, out))


REACH = 64
"""Words after a question among which its answer is: enough for four choices of a dozen words."""


@kernel
def find_answers(
    questions: Int64s, stops: Int64s, ends: Int64s, data: UInt8s, words: WordTable, answers: Answers, out: Pairs
) -> int:
    """Writes the questions that one of their answers follows within `REACH` words; returns their
    number. `questions`, `stops`, `ends`: (num_matches,), the question of each match, the byte after
    it, and after its document. `words`: `folded_words.words_table()`."""
    (codes, expansions), (offsets, lengths, keys, pairs) = words, answers
    matches, items, pair_stops = out
    prefixes, count = np.zeros(RING, np.uint64), np.int64(0)
    for match in range(len(questions)):
        question, position, prefix, left = questions[match], stops[match], _0, np.int64(WHOLE * REACH)
        for number in range(1, RING):
            hashed, weight, _, position = next_word(data, position, ends[match], codes, expansions)
            left -= weight
            if weight == 0 or left < 0:
                break
            prefix = prefix * RADIX + hashed
            prefixes[number] = prefix
            for index in range(offsets[question], offsets[question + 1]):
                length = np.int64(lengths[index])
                if length > number:
                    continue
                answer = run_key(prefix, prefixes[number - length], length, ANSWER)
                slot = slot_of_key(keys, len(keys), pair_key(answer, question))
                if slot >= 0:
                    if count < len(matches):
                        matches[count], items[count], pair_stops[count] = match, pairs[slot], position
                    count += 1
    return int(count)
