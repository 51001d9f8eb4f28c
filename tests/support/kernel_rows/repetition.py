"""Rows of `datapipe/kernels/filters/repetition.py`. The tiny tables make every document take many parts, and parts overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datapipe.kernels.filters import repetition
from datapipe.kernels.text.words import Lines, Words, find_lines, find_words
from tests.oracles import repetition as oracle
from tests.support.kernel_table import Case, Row

_LARGE, _TINY = 1 << 16, 8


def _lines(case: Case) -> Lines:
    with np.errstate(over="ignore"):
        return find_lines(case.offsets, case.data)


def _words(case: Case) -> Words:
    with np.errstate(over="ignore"):
        return find_words(case.offsets, case.data)


def _units_of(spans: Lines | Words) -> repetition.Units:
    return repetition.Units(doc_offsets=spans.doc_offsets, hashes=spans.hashes, chars=spans.chars)


def _join_arguments(joint_chars: int) -> Callable[[Case], Sequence[Any]]:
    def arguments(case: Case) -> Sequence[Any]:
        lines = _lines(case)
        room = len(lines.hashes)
        outputs = [np.zeros_like(lines.doc_offsets), np.zeros(room, np.uint64), np.zeros(room, np.int32)]
        return [_units_of(lines), lines.opens, joint_chars, *outputs]

    return arguments


def _unit_arguments(slots: int, every: bool) -> Callable[[Case], Sequence[Any]]:
    def arguments(case: Case) -> Sequence[Any]:
        lines = _lines(case)
        scratch = [np.zeros(slots, np.uint64), np.zeros(slots, np.uint8)]
        return [_units_of(lines), every, *scratch, np.zeros((len(case.texts), 4), np.int64)]

    return arguments


def _ngram_arguments(slots: int, joined: bool) -> Callable[[Case], Sequence[Any]]:
    def arguments(case: Case) -> Sequence[Any]:
        words = _words(case)
        table = [np.zeros(slots, np.uint64), np.zeros(slots, np.int32), np.zeros(slots, np.int32)]
        outputs = [np.zeros(len(words.hashes), np.uint8), np.zeros((len(case.texts), 9), np.int64)]
        return [_units_of(words), joined, *table, *outputs]

    return arguments


def _walk_arguments(case: Case) -> Sequence[Any]:
    words = _words(case)
    depth = np.array(
        [length_of_word for doc in _split(words.doc_offsets, words.hashes) for length_of_word in oracle.depth(doc)], np.uint8
    )
    scratch = np.zeros(1 << (2 * len(words.hashes)).bit_length(), np.uint64)
    return [_units_of(words), depth, scratch, np.zeros((len(case.texts), 9), np.int64)]


def _split(doc_offsets: np.ndarray, column: np.ndarray) -> list[list[int]]:
    return [column[start:stop].tolist() for start, stop in zip(doc_offsets[:-1], doc_offsets[1:], strict=True)]


def _paragraphs(units: repetition.Units, opens: np.ndarray, joint_chars: int) -> tuple[Any, Sequence[Any]]:
    documents = zip(*(_split(units.doc_offsets, column) for column in (units.hashes, units.chars, opens)), strict=True)
    paragraphs = [oracle.paragraphs(*document, joint_chars) for document in documents]
    all_hashes, all_chars = (
        [hashed for doc, _ in paragraphs for hashed in doc],
        [length for _, doc in paragraphs for length in doc],
    )
    return None, [np.cumsum([0, *(len(doc) for doc, _ in paragraphs)]), all_hashes, all_chars]


def _documents(units: repetition.Units) -> list[tuple[list[int], list[int]]]:
    return list(zip(_split(units.doc_offsets, units.hashes), _split(units.doc_offsets, units.chars), strict=True))


def _units(units: repetition.Units, every: bool, *_: Any) -> tuple[Any, Sequence[Any]]:
    return None, [[oracle.of_units(*document, every) for document in _documents(units)]]


def _ngrams(units: repetition.Units, joined: bool, *_: Any) -> tuple[Any, Sequence[Any]]:
    documents = _documents(units)
    depth = [length_of_word for document, _ in documents for length_of_word in oracle.depth(document)]
    return None, [depth, [oracle.of_words(*document, joined) for document in documents]]


def _walked(units: repetition.Units, *_: Any) -> tuple[Any, Sequence[Any]]:
    return None, [[oracle.walked(*document) for document in _documents(units)]]


ROWS = [
    Row(kernel=repetition.join_lines, arguments=_join_arguments(0), oracle=_paragraphs, num_outputs=3),
    Row(kernel=repetition.join_lines, arguments=_join_arguments(1), oracle=_paragraphs, num_outputs=3, variant="with newlines"),
    Row(kernel=repetition.measure_units, arguments=_unit_arguments(_LARGE, every=False), oracle=_units),
    Row(kernel=repetition.measure_units, arguments=_unit_arguments(_LARGE, every=True), oracle=_units, variant="every"),
    Row(kernel=repetition.measure_units, arguments=_unit_arguments(_TINY, every=True), oracle=_units, variant="tiny table"),
    Row(kernel=repetition.measure_ngrams, arguments=_ngram_arguments(_LARGE, joined=False), oracle=_ngrams, num_outputs=2),
    *(
        Row(
            kernel=repetition.measure_ngrams,
            arguments=_ngram_arguments(_TINY, joined),
            oracle=_ngrams,
            num_outputs=2,
            variant="tiny table, joined" if joined else "tiny table",
        )
        for joined in (False, True)
    ),
    Row(kernel=repetition.walk_ngrams, arguments=_walk_arguments, oracle=_walked),
]
