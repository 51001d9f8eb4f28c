"""Rows of `datapipe/kernels/decontaminate`: parts of the texts of a case are n-grams, questions, answers and matches."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from datapipe.kernels.decontaminate import coverage, cutting, search, word_runs
from datapipe.kernels.decontaminate.folded_words import words_table
from datapipe.kernels.decontaminate.word_runs import RING, gram_table
from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.types import input_record, room_for
from tests.oracles import decontaminate as oracle
from tests.support.kernel_table import Case, Steps, columns, offsets_of, room, row

_NUM_GRAMS, _NUM_ITEMS, _GAP = 12, 6, 5


def _int64s(rows: Iterable[Sequence[Any]], number: int) -> list[np.ndarray]:
    return [np.array(column, np.int64) for column in columns(rows, number)]


def _slots(keys: Sequence[int]) -> list[int | None]:
    """The slots of a hash table: for each the number of the key that is there, by linear probing."""
    size = num_slots_for(len(keys))
    table: list[int | None] = [None] * size
    for number, key in enumerate(keys):
        table[next(place % size for place in range(key % size, key % size + size) if table[place % size] is None)] = number
    return table


@row(coverage.find_covered)
def find_covered(case: Case) -> Steps:
    """Matches of n-grams in the order of the text, and the items that list each n-gram."""
    rng = case.generator
    lists = [np.sort(rng.choice(_NUM_ITEMS, rng.integers(0, 4), replace=False)) for _ in range(_NUM_GRAMS)]
    items = np.concatenate(lists).astype(np.int32)
    numbers = rng.integers(1, 9, _NUM_GRAMS), rng.integers(4, 20, _NUM_ITEMS)
    postings = input_record(coverage.Postings, (offsets_of(lists), items, rng.random(len(items)) < 0.4, *numbers, _GAP))
    documents = np.sort(rng.integers(0, max(1, len(case.texts)), 20 * len(case.texts)))
    words = np.cumsum(rng.integers(1, 4, len(documents))) + 300 * documents
    matches = [documents, rng.integers(0, _NUM_GRAMS, len(documents)), words, 2 * words, 2 * words + 5]
    scratch = coverage.Passages(*(np.zeros(_NUM_ITEMS, np.int64) for _ in range(6)), np.zeros(len(items), np.int64))
    yield [*matches, postings, scratch], [coverage.Covered(*room(1000, *[np.int64] * 5))]
    listed = list(zip(*(column.tolist() for column in matches)))
    found = sorted(passage for item in range(_NUM_ITEMS) for passage in oracle.passages(item, listed, postings))
    yield len(found), columns((passage[2:] for passage in found), 5)  # by the match at which the need is reached


@row(cutting.cut_around, valid_only=True)
def cut_around(case: Case) -> Steps:
    """Up to two matches in every other document, at borders of characters."""
    rng, borders_of, rows = case.generator, list[list[int]](), list[tuple[int, int, int]]()
    for number, (begin, text) in enumerate(zip(case.begins, case.texts)):
        borders_of.append(offsets_of((character.encode() for character in text.decode()), begin).tolist())
        for _ in range(2 if text and number % 2 == 0 else 0):
            rows.append((number, *np.sort(rng.choice(borders_of[-1], 2, replace=False)).tolist()))
    rows.sort()
    out = cutting.Removed(*room(2 * len(rows), *[np.int64] * 3), np.ones(len(case.texts), np.int64))
    yield [case.offsets, case.data, *_int64s(rows, 3), 3, 4], [out]
    pieces, spans = [1] * len(case.texts), list[tuple[int, int, int]]()
    for document in sorted({number for number, *_ in rows}):
        text, borders = case.texts[document].decode(), borders_of[document]
        own = [(borders.index(start), borders.index(stop)) for number, start, stop in rows if number == document]
        kept = oracle.pieces(text, own, 3, 4)
        pieces[document] = len(kept)
        edges = [0, *(edge for piece in kept for edge in piece), len(text)]
        gaps = list(zip(edges[::2], edges[1::2]))
        for number, (start, stop) in enumerate(gaps):
            if start < stop:
                spans.append((borders[start], borders[stop], 2 if 0 < number < len(gaps) - 1 else 0))
    yield len(spans), [*columns(spans, 3), pieces]


_WEIGHT, _TAIL, _LENGTHS = 12, 4 * search.TAIL_WORDS, (4, 6, 9)
_GRAM_SALT, _TAIL_SALT, _QUESTION_SALT, _ANSWER_SALT = 1, 2, 3, 4


@row(search.find_grams)
def find_grams(case: Case) -> Steps:
    """Every third n-gram is listed; of every fifth place that may end a question its tail, with the lengths; questions."""
    runs = [oracle.words(text) for text in case.texts]
    grams, tails, questions = dict[int, None](), dict[int, list[int]](), dict[int, None]()
    for run in runs:
        for first, stop in oracle.window_ends(run[:300], _WEIGHT)[::3]:
            grams[oracle.key_of(run[first:stop], _GRAM_SALT)] = None
        for first, stop in oracle.window_ends(run[:300], _TAIL)[::5]:
            lengths = [length for length in _LENGTHS if stop - first <= length <= stop]
            if lengths:
                tails.setdefault(oracle.key_of(run[first:stop], _TAIL_SALT), lengths)
                questions[oracle.key_of(run[stop - lengths[0] : stop], _QUESTION_SALT)] = None
    entries = [*grams, *tails, *questions]
    lengths = np.array([length for of_tail in tails.values() for length in of_tail], np.int32)
    record = input_record(search.Tails, (len(grams) if tails else -1, offsets_of(tails.values()), lengths))
    out = room_for(search.Matches, 2 * int(case.offsets[-1] - case.offsets[0]))
    yield [case.offsets, case.data, words_table(), gram_table(np.array(entries, np.uint64)), record, _WEIGHT], [out]
    entry_of, rows, before = {key: number for number, key in enumerate(entries)}, list[tuple[int, ...]](), 0
    for document, (run, offset) in enumerate(zip(runs, case.begins)):
        ends, near = _by_stop(run, _WEIGHT), _by_stop(run, _TAIL)
        for stop in range(1, len(run) + 1):
            candidates = [(ends[stop], _GRAM_SALT)] if stop in ends else []
            lengths_here = tails.get(oracle.key_of(run[near[stop] : stop], _TAIL_SALT), []) if stop in near else []
            candidates += [(stop - length, _QUESTION_SALT) for length in lengths_here if length <= stop]
            for first, salt in candidates:
                entry = entry_of.get(oracle.key_of(run[first:stop], salt), -1)
                if entry >= 0:
                    rows.append((document, entry, offset + run[first].start, offset + run[stop - 1].stop, before + stop))
        before += len(run) + RING
    yield len(rows), columns(rows, 5)


def _by_stop(run: list[oracle.Word], weight: int) -> dict[int, int]:
    """The first word of the window that ends at each word."""
    found, first, total = {}, 0, 0
    for stop, word in enumerate(run, 1):
        total += word.weight
        while total - run[first].weight >= weight and first + 1 < stop:
            total -= run[first].weight
            first += 1
        if total >= weight:
            found[stop] = first
    return found


@row(search.fill_pairs)
def fill_pairs(case: Case) -> Steps:
    answers = case.generator.integers(1, 1 << 63, 3 * len(case.texts) + 1).astype(np.uint64)
    questions, size = np.arange(len(answers)) // 2, num_slots_for(len(answers))
    yield [answers, questions], [np.zeros(size, np.uint64), np.zeros(size, np.int32)]
    keys = list(map(oracle.pair_key, answers.tolist(), questions.tolist()))
    table = _slots(keys)
    yield None, [np.array([0 if pair is None else keys[pair] for pair in table], np.uint64), [pair or 0 for pair in table]]


@row(search.find_answers)
def find_answers(case: Case) -> Steps:
    """Of texts with enough words: the word that ends the question, and first and last word of the answer, twice each."""
    runs = [oracle.words(text) for text in case.texts]
    long = [(number, len(run)) for number, run in enumerate(runs) if len(run) >= 8]
    rows = [found for number, size in long for found in ((number, 3, 4, 6), (number, 4, size - 1, size))]
    keys = np.array([oracle.key_of(runs[n][first:stop], _ANSWER_SALT) for n, _, first, stop in rows], np.uint64)
    questions, slots = np.arange(len(rows), dtype=np.int64), num_slots_for(len(rows))
    table, pairs = np.zeros(slots, np.uint64), np.zeros(slots, np.int32)
    search.fill_pairs(keys, questions, table, pairs)
    lengths = np.array([stop - first for _, _, first, stop in rows], np.int32)
    answers = input_record(search.Answers, (np.arange(len(rows) + 1), lengths, table, pairs))
    stops = np.array([case.offsets[n] + runs[n][word].stop for n, word, _, _ in rows], np.int64)
    ends = np.array([case.offsets[n + 1] for n, *_ in rows], np.int64)
    out = search.Pairs(*room(int(case.offsets[-1]), *[np.int64] * 3))
    yield [questions, stops, ends, case.data, words_table(), answers], [out]
    found = list[tuple[int, int, int]]()
    for match, (number, word, first, stop) in enumerate(rows):
        after, wanted = runs[number][word + 1 : word + RING], [each.form for each in runs[number][first:stop]]
        weights = np.cumsum([each.weight for each in after])
        after = after[: int((weights <= 4 * search.REACH).sum())]
        for end in range(len(wanted), len(after) + 1):
            if [each.form for each in after[end - len(wanted) : end]] == wanted:
                found.append((match, match, int(case.offsets[number]) + after[end - 1].stop))
    yield len(found), columns(found, 3)


@row(word_runs.fill_table)
def fill_table(case: Case) -> Steps:
    keys = np.unique(case.generator.integers(1, 1 << 63, 5 * len(case.texts) + 3).astype(np.uint64))
    size = num_slots_for(len(keys))
    yield [keys], [np.zeros(8, np.uint64), np.zeros(size, np.uint64), np.zeros(size, np.int32)]
    bits, listed = [0] * 8, keys.tolist()
    for key in listed:
        bits[(key >> 20) % 8] |= 1 << key % 64 | 1 << (key >> 6) % 64
    table = _slots(listed)
    slots = np.array([0 if entry is None else listed[entry] for entry in table], np.uint64)
    yield None, [np.array(bits, np.uint64), slots, [entry or 0 for entry in table]]


@row(word_runs.hash_windows)
def hash_windows(case: Case) -> Steps:
    size, num_texts = int(case.offsets[-1] - case.offsets[0]), len(case.texts)
    out = word_runs.RunsOut(*room(size, np.int64, np.uint64), *room(num_texts, np.int64, np.int64, np.uint64))
    yield [case.offsets, case.data, words_table(), _WEIGHT, word_runs.GRAM], [out]
    runs = [oracle.words(text) for text in case.texts]
    keys = [(number, key) for number, text in enumerate(case.texts) for key in oracle.keys(text, _WEIGHT, _GRAM_SALT)]
    texts = [(len(run), sum(word.weight for word in run), oracle.prefix_of(run)) for run in runs]
    yield len(keys), [*columns(keys, 2), *columns(texts, 3)]


@row(word_runs.key_texts)
def key_texts(case: Case) -> Steps:
    runs = [oracle.words(text) for text in case.texts]
    prefixes = np.array([oracle.prefix_of(run) for run in runs], np.uint64)
    yield [np.array(list(map(len, runs)), np.int64), prefixes, word_runs.ANSWER], room(len(runs), np.uint64)
    yield None, [[oracle.key_of(run, _ANSWER_SALT) if 0 < len(run) < word_runs.RING else 0 for run in runs]]
