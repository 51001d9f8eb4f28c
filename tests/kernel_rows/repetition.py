"""Rows of `datapipe/kernels/repetition.py`. The tiny tables make every document take many parts, and parts overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datapipe.kernels import repetition
from datapipe.kernels.words import Lines, Words, find_lines, find_words
from tests.kernel_table import Case, Row
from tests.oracles import repetition as oracle

_LARGE, _TINY = 1 << 16, 8


def _lines(case: Case) -> Lines:
    with np.errstate(over="ignore"):
        return find_lines(case.offsets, case.data)


def _words(case: Case) -> Words:
    with np.errstate(over="ignore"):
        return find_words(case.offsets, case.data)


def _join_arguments(case: Case) -> Sequence[Any]:
    lines = _lines(case)
    room = len(lines.hashes)
    outputs = [np.zeros_like(lines.doc_offsets), np.zeros(room, np.uint64), np.zeros(room, np.int32)]
    return [lines.doc_offsets, lines.hashes, lines.chars, lines.opens, *outputs]


def _unit_arguments(slots: int) -> Callable[[Case], Sequence[Any]]:
    def arguments(case: Case) -> Sequence[Any]:
        lines = _lines(case)
        return [lines.doc_offsets, lines.hashes, lines.chars, np.zeros(slots, np.uint64), np.zeros((len(case.texts), 2))]

    return arguments


def _ngram_arguments(slots: int) -> Callable[[Case], Sequence[Any]]:
    def arguments(case: Case) -> Sequence[Any]:
        words = _words(case)
        table = [np.zeros(slots, np.uint64), np.zeros(slots, np.int32), np.zeros(slots, np.int32)]
        depth = np.zeros(int(np.diff(words.doc_offsets).max(initial=0)), np.uint8)
        return [words.doc_offsets, words.hashes, words.chars, *table, depth, np.zeros((len(case.texts), 9))]

    return arguments


def _split(doc_offsets: np.ndarray, column: np.ndarray) -> list[list[int]]:
    return [column[start:stop].tolist() for start, stop in zip(doc_offsets[:-1], doc_offsets[1:], strict=True)]


def _paragraphs(doc_offsets: np.ndarray, *columns: np.ndarray) -> tuple[Any, Sequence[Any]]:
    documents = zip(*(_split(doc_offsets, column) for column in columns), strict=True)
    found = [oracle.paragraphs(*document) for document in documents]
    hashes, chars = [hashed for doc, _ in found for hashed in doc], [length for _, doc in found for length in doc]
    return None, [np.cumsum([0, *(len(doc) for doc, _ in found)]), hashes, chars]


def _units(doc_offsets: np.ndarray, hashes: np.ndarray, chars: np.ndarray, _: np.ndarray) -> tuple[Any, Sequence[Any]]:
    documents = zip(_split(doc_offsets, hashes), _split(doc_offsets, chars), strict=True)
    return None, [[oracle.of_units(*document) for document in documents]]


def _ngrams(doc_offsets: np.ndarray, hashes: np.ndarray, chars: np.ndarray, *_: np.ndarray) -> tuple[Any, Sequence[Any]]:
    documents = zip(_split(doc_offsets, hashes), _split(doc_offsets, chars), strict=True)
    return None, [[oracle.of_words(*document) for document in documents]]


ROWS = [
    Row(kernel=repetition.join_lines, arguments=_join_arguments, oracle=_paragraphs, num_outputs=3),
    Row(kernel=repetition.measure_units, arguments=_unit_arguments(_LARGE), oracle=_units),
    Row(kernel=repetition.measure_units, arguments=_unit_arguments(_TINY), oracle=_units, variant="tiny table"),
    Row(kernel=repetition.measure_ngrams, arguments=_ngram_arguments(_LARGE), oracle=_ngrams),
    Row(kernel=repetition.measure_ngrams, arguments=_ngram_arguments(_TINY), oracle=_ngrams, variant="tiny table"),
]
