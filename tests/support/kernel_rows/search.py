"""Rows of `datapipe/kernels/decontaminate/search.py`: parts of the texts of a case are n-grams, questions and answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.decontaminate import search as kernels
from datapipe.kernels.decontaminate.folded_words import words_table
from datapipe.kernels.decontaminate.word_runs import RING, gram_table
from datapipe.kernels.hashing import num_slots_for
from datapipe.kernels.types import input_record
from tests.oracles import decontaminate as oracle
from tests.oracles.decontaminate import Word
from tests.support.kernel_table import Case, Row

_WEIGHT, _ANCHOR, _LENGTHS = 12, 4 * kernels.ANCHOR_WORDS, (4, 6, 9)
_GRAM_SALT, _ANCHOR_SALT, _QUESTION_SALT, _ANSWER_SALT = 1, 2, 3, 4


def _runs(case: Case) -> list[list[Word]]:
    return [oracle.words(text) for text in case.texts]


def _listed(case: Case) -> tuple[list[int], dict[int, list[int]], list[int]]:
    """Keys of every third n-gram; of every fifth place that may end a question its anchor, with the lengths; the questions."""
    grams, anchors, questions = dict[int, None](), dict[int, list[int]](), dict[int, None]()
    for run in _runs(case):
        for first, stop in oracle.window_ends(run[:300], _WEIGHT)[::3]:
            grams[oracle.key_of(run[first:stop], _GRAM_SALT)] = None
        for first, stop in oracle.window_ends(run[:300], _ANCHOR)[::5]:
            lengths = [length for length in _LENGTHS if stop - first <= length <= stop]
            if lengths:
                anchors.setdefault(oracle.key_of(run[first:stop], _ANCHOR_SALT), lengths)
                questions[oracle.key_of(run[stop - lengths[0] : stop], _QUESTION_SALT)] = None
    return list(grams), anchors, list(questions)


def _grams_arguments(case: Case) -> list[Any]:
    grams, anchors, questions = _listed(case)
    offsets = np.cumsum([0, *map(len, anchors.values())], dtype=np.int64)
    lengths = np.array([length for of_anchor in anchors.values() for length in of_anchor], np.int32)
    record = input_record(kernels.Anchors, (len(grams) if anchors else -1, offsets, lengths))
    table = gram_table(np.array([*grams, *anchors, *questions], np.uint64))
    room = kernels.room_for_matches(2 * int(case.offsets[-1] - case.offsets[0]))
    return [case.offsets, case.data, words_table(), table, record, _WEIGHT, room]


def _grams_expected(case: Case) -> tuple[int, list[Any]]:
    grams, anchors, questions = _listed(case)
    entry_of = {key: number for number, key in enumerate([*grams, *anchors, *questions])}
    rows, before = list[tuple[int, int, int, int, int]](), 0
    for document, (run, offset) in enumerate(zip(_runs(case), case.offsets.tolist())):
        ends, near = dict(_by_stop(run, _WEIGHT)), dict(_by_stop(run, _ANCHOR))
        for stop in range(1, len(run) + 1):
            candidates = [(ends[stop], _GRAM_SALT)] if stop in ends else []
            anchor = oracle.key_of(run[near[stop] : stop], _ANCHOR_SALT) if stop in near else None
            lengths = anchors.get(anchor, []) if anchor is not None else []
            candidates += [(stop - length, _QUESTION_SALT) for length in lengths if length <= stop]
            for first, salt in candidates:
                entry = entry_of.get(oracle.key_of(run[first:stop], salt), -1)
                if entry >= 0:
                    rows.append((document, entry, offset + run[first].start, offset + run[stop - 1].stop, before + stop))
        before += len(run) + RING
    return len(rows), [np.array([row[part] for row in rows], np.int64) for part in range(5)]


def _by_stop(run: list[Word], weight: int) -> list[tuple[int, int]]:
    """The first word of the window that ends at each word."""
    found, first, total = [], 0, 0
    for stop, word in enumerate(run, 1):
        total += word.weight
        while total - run[first].weight >= weight and first + 1 < stop:
            total -= run[first].weight
            first += 1
        if total >= weight:
            found.append((stop, first))
    return found


def _fill_arguments(case: Case) -> list[Any]:
    answers = case.generator.integers(1, 1 << 63, 3 * len(case.texts) + 1).astype(np.uint64)
    slots = num_slots_for(len(answers))
    return [answers, np.arange(len(answers)) // 2, np.zeros(slots, np.uint64), np.zeros(slots, np.int32)]


def _fill_expected(answers: np.ndarray, questions: np.ndarray) -> tuple[None, list[Any]]:
    slots = num_slots_for(len(answers))
    table, pairs = [0] * slots, [0] * slots
    for pair, (answer, question) in enumerate(zip(answers.tolist(), questions.tolist())):
        key = oracle.pair_key(answer, question)
        slot = next(place % slots for place in range(key % slots, key % slots + slots) if not table[place % slots])
        table[slot], pairs[slot] = key, pair
    return None, [np.array(table, np.uint64), pairs]


def _answered(case: Case) -> list[tuple[int, int, int, int]]:
    """Per text with enough words: its number, the word that ends the question, and first and last word of the answer."""
    found = []
    for number, run in enumerate(_runs(case)):
        if len(run) >= 8:
            found.append((number, 3, 4, 6))
            found.append((number, 4, len(run) - 1, len(run)))
    return found


def _answers_arguments(case: Case) -> list[Any]:
    runs, rows = _runs(case), _answered(case)
    keys = np.array([oracle.key_of(runs[n][first:stop], _ANSWER_SALT) for n, _, first, stop in rows], np.uint64)
    questions = np.arange(len(rows), dtype=np.int64)
    slots = num_slots_for(len(rows))
    table, pairs = np.zeros(slots, np.uint64), np.zeros(slots, np.int32)
    kernels.fill_pairs(keys, questions, table, pairs)
    lengths = np.array([stop - first for _, _, first, stop in rows], np.int32)
    answers = input_record(kernels.Answers, (np.arange(len(rows) + 1), lengths, table, pairs))
    stops = np.array([case.offsets[n] + runs[n][word].stop for n, word, _, _ in rows], np.int64)
    ends = np.array([case.offsets[n + 1] for n, *_ in rows], np.int64)
    room = kernels.Pairs(*(np.empty(int(case.offsets[-1]), np.int64) for _ in range(3)))
    return [questions, stops, ends, case.data, words_table(), answers, room]


def _answers_expected(case: Case) -> tuple[int, list[Any]]:
    runs, rows, found = _runs(case), _answered(case), list[tuple[int, int, int]]()
    for match, (number, word, first, stop) in enumerate(rows):
        after, wanted = runs[number][word + 1 : word + RING], [each.form for each in runs[number][first:stop]]
        weights = np.cumsum([each.weight for each in after])
        after = after[: int((weights <= 4 * kernels.REACH).sum())]
        for end in range(len(wanted), len(after) + 1):
            if [each.form for each in after[end - len(wanted) : end]] == wanted:
                found.append((match, match, int(case.offsets[number]) + after[end - 1].stop))
    return len(found), [np.array([row[part] for row in found], np.int64) for part in range(3)]


ROWS = [
    Row(kernel=kernels.find_grams, arguments=_grams_arguments, oracle=_grams_expected, from_case=True),
    Row(kernel=kernels.fill_pairs, arguments=_fill_arguments, oracle=_fill_expected, num_outputs=2),
    Row(kernel=kernels.find_answers, arguments=_answers_arguments, oracle=_answers_expected, from_case=True),
]
