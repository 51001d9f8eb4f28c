"""Rows of `datapipe/kernels/text/words.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from datapipe.kernels.text import words
from datapipe.kernels.text.unicode_classes import class_table
from tests.oracles import words as oracle
from tests.support.kernel_table import Case, Row

_WIDE_SPACES = {chr(code).encode()[:2] for code in range(0x80, sys.maxunicode + 1) if chr(code).isspace()}
"""The first two bytes of every white space beyond ASCII."""


def _texts(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start:stop].tobytes() for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]


def _arguments(case: Case) -> Sequence[Any]:
    """Room for one word or line per byte: the kernels that compute upper bounds have rows of their own."""
    return [case.offsets, case.data, class_table(), words.room_for_spans(len(case.offsets), len(case.data))]


def _line_arguments(newlines: int) -> Callable[[Case], Sequence[Any]]:
    def arguments(case: Case) -> Sequence[Any]:
        offsets, data, classes, out = _arguments(case)
        return [offsets, data, classes, newlines, out]

    return arguments


def _columns(find: Callable[[bytes], list[oracle.Span]]) -> Callable[..., tuple[Any, Sequence[Any]]]:
    def expected(offsets: np.ndarray, data: np.ndarray, *_: Any) -> tuple[Any, Sequence[Any]]:
        spans = [find(text) for text in _texts(offsets, data)]
        doc_offsets = np.cumsum([0, *map(len, spans)])
        rows = [
            span._replace(start=span.start + offset) for offset, doc in zip(offsets[:-1], spans, strict=True) for span in doc
        ]
        return len(rows), [doc_offsets, *(list(column) for column in zip(*rows))] if rows else [doc_offsets, [], [], [], [], []]

    return expected


def _most_words(offsets: np.ndarray, data: np.ndarray) -> tuple[int, list[Any]]:
    """White space that a word may follow: ends of runs in ASCII, and bytes that start like longer white space."""
    text = data[offsets[0] : offsets[-1]].tobytes()
    spaces = [chr(byte).isspace() and byte < 0x80 for byte in text]
    ends = sum(space and not following for space, following in zip(spaces, spaces[1:]))
    return len(offsets) - 1 + ends + sum(text[index : index + 2] in _WIDE_SPACES for index in range(len(text) - 1)), []


def _most_lines(offsets: np.ndarray, data: np.ndarray) -> tuple[int, list[Any]]:
    return len(offsets) - 1 + data[offsets[0] : offsets[-1]].tobytes().count(b"\n"), []


ROWS = [
    Row(kernel=words.split_words, arguments=_arguments, oracle=_columns(oracle.words)),
    Row(kernel=words.split_lines, arguments=_line_arguments(1), oracle=_columns(oracle.lines)),
    Row(kernel=words.split_lines, arguments=_line_arguments(2), oracle=_columns(oracle.paragraphs), variant="paragraphs"),
    Row(kernel=words.most_words, arguments=lambda case: [case.offsets, case.data], oracle=_most_words, num_outputs=0),
    Row(kernel=words.most_lines, arguments=lambda case: [case.offsets, case.data], oracle=_most_lines, num_outputs=0),
]
