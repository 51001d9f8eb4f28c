"""Rows of `datapipe/kernels/quality.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels import quality
from datapipe.kernels.unicode_classes import class_table
from datapipe.kernels.words import find_lines, find_words
from tests.kernel_table import Case, Row
from tests.oracles import quality as oracle


def _word_arguments(case: Case) -> Sequence[Any]:
    with np.errstate(over="ignore"):
        words = find_words(case.offsets, case.data)
    arrays = [words.doc_offsets, words.starts, words.lengths, words.chars, words.flags]
    return [*arrays, case.data, class_table(), np.zeros((len(case.texts), 6))]


def _line_arguments(case: Case) -> Sequence[Any]:
    with np.errstate(over="ignore"):
        lines = find_lines(case.offsets, case.data)
    return [lines.doc_offsets, lines.starts, lines.lengths, case.data, np.zeros((len(case.texts), 2))]


def _pieces(doc_offsets: np.ndarray, starts: np.ndarray, lengths: np.ndarray, data: np.ndarray) -> list[list[bytes]]:
    """The words or lines of every document."""
    pieces = [data[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)]
    return [pieces[start:stop] for start, stop in zip(doc_offsets[:-1], doc_offsets[1:], strict=True)]


def _words(doc_offsets: np.ndarray, starts: np.ndarray, lengths: np.ndarray, *others: np.ndarray) -> tuple[Any, Sequence[Any]]:
    _, _, data, _ = others
    return None, [[oracle.of_words(words) for words in _pieces(doc_offsets, starts, lengths, data)]]


def _lines(doc_offsets: np.ndarray, starts: np.ndarray, lengths: np.ndarray, data: np.ndarray) -> tuple[Any, Sequence[Any]]:
    return None, [[oracle.of_lines(lines) for lines in _pieces(doc_offsets, starts, lengths, data)]]


ROWS = [
    Row(kernel=quality.measure_words, arguments=_word_arguments, oracle=_words),
    Row(kernel=quality.measure_lines, arguments=_line_arguments, oracle=_lines),
]
