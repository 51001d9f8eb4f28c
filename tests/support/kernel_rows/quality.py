"""Rows of `datapipe/kernels/filters/quality.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datapipe.kernels.filters import quality
from datapipe.kernels.text.unicode_classes import class_table
from datapipe.kernels.text.words import Lines, Words, find_lines, find_words
from tests.oracles import quality as oracle
from tests.support.kernel_table import Case, Row

_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with", "ж")
_BULLETS = "•‣◦●▪-*"


def _words(case: Case) -> Words:
    with np.errstate(over="ignore"):
        return find_words(case.offsets, case.data)


def _lines(case: Case) -> Lines:
    with np.errstate(over="ignore"):
        return find_lines(case.offsets, case.data)


def _texts_of(case: Case, spans: Words | Lines) -> list[list[bytes]]:
    """The words or lines of every document."""
    texts = [case.data[start : start + length].tobytes() for start, length in zip(spans.starts, spans.lengths, strict=True)]
    return [texts[start:stop] for start, stop in zip(spans.doc_offsets[:-1], spans.doc_offsets[1:], strict=True)]


def _row(kernel: Any, make: Callable[[Case], tuple[Sequence[Any], Sequence[Any]]], columns: int, variant: str = "") -> Row:
    """A row whose inputs and expected counts come from the case."""
    return Row(
        kernel=kernel,
        arguments=lambda case: [*make(case)[0], np.zeros((len(case.texts), columns), np.int64)],
        oracle=lambda case: (None, [make(case)[1]]),
        variant=variant,
        from_case=True,
    )


def _counted(case: Case) -> tuple[Sequence[Any], Sequence[Any]]:
    words = _words(case)
    return [words], [oracle.of_words(texts_of_doc) for texts_of_doc in _texts_of(case, words)]


def _symbols(case: Case) -> tuple[Sequence[Any], Sequence[Any]]:
    return [case.offsets, case.data], [oracle.of_text(text) for text in case.texts]


def _stop_words(compare: str) -> Callable[[Case], tuple[Sequence[Any], Sequence[Any]]]:
    def make(case: Case) -> tuple[Sequence[Any], Sequence[Any]]:
        words = _words(case)
        table = quality.stop_word_table(_STOP_WORDS, compare != "exact")
        scratch = np.zeros(len(_STOP_WORDS), np.int64)
        expected = [oracle.stop_words(texts_of_doc, _STOP_WORDS, compare) for texts_of_doc in _texts_of(case, words)]
        return [words, case.data, class_table(), table, compare == "stripped", scratch], expected

    return make


def _ends(spaced: bool) -> Callable[[Case], tuple[Sequence[Any], Sequence[Any]]]:
    def make(case: Case) -> tuple[Sequence[Any], Sequence[Any]]:
        lines = _lines(case)
        bullets = np.array([ord(sign) for sign in _BULLETS])
        expected = [oracle.of_lines(texts_of_doc, _BULLETS, spaced) for texts_of_doc in _texts_of(case, lines)]
        return [lines, case.data, bullets, spaced], expected

    return make


def _starts(case: Case) -> Sequence[Any]:
    return [case.offsets, case.data, class_table(), np.zeros(len(case.texts), np.int64)]


ROWS = [
    Row(
        kernel=quality.count_word_starts,
        arguments=_starts,
        oracle=lambda case: (None, [[oracle.word_starts(text) for text in case.texts]]),
        from_case=True,
    ),
    _row(quality.count_words, _counted, 5),
    _row(quality.count_symbols, _symbols, 3),
    *(_row(quality.count_stop_words, _stop_words(how), 2, variant=how) for how in ("exact", "folded", "stripped")),
    _row(quality.count_lines, _ends(spaced=False), 2),
    _row(quality.count_lines, _ends(spaced=True), 2, variant="spaced"),
]
