"""Rows of `datapipe/kernels/text/selection.py`: the words of every other document, equal to those of their texts alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.text import selection
from datapipe.kernels.text.words import find_words, room_for_spans
from tests.oracles import words as oracle
from tests.support.kernel_table import Case, Row


def _keep(case: Case) -> np.ndarray:
    return case.generator.random(len(case.texts)) < 0.5


def _kept(case: Case) -> list[bytes]:
    return [text for text, keep in zip(case.texts, _keep(case), strict=True) if keep]


def _arguments(case: Case) -> Sequence[Any]:
    with np.errstate(over="ignore"):
        words = find_words(case.offsets, case.data)
    kept_offsets = np.cumsum([7, *map(len, _kept(case))], dtype=np.int64)
    return [
        selection.AnySpans(*words),
        _keep(case),
        case.offsets,
        kept_offsets,
        room_for_spans(len(kept_offsets), len(words.starts)),
    ]


def _expected(case: Case) -> tuple[Any, Sequence[Any]]:
    spans = [oracle.words(text) for text in _kept(case)]
    starts = np.cumsum([7, *map(len, _kept(case))])
    rows = [span._replace(start=span.start + offset) for offset, doc in zip(starts, spans) for span in doc]
    doc_offsets = np.cumsum([0, *map(len, spans)])
    return None, [doc_offsets, *(list(column) for column in zip(*rows))] if rows else [doc_offsets, *[[]] * 5]


ROWS = [Row(kernel=selection.select_spans, arguments=_arguments, oracle=_expected, from_case=True)]
