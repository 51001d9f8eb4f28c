"""Rows of `datapipe/kernels/text/unicode_words.py`: the texts, each followed by lines of many scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.text import unicode_words
from datapipe.kernels.text.unicode_classes import class_table
from datapipe.kernels.text.words import room_for_spans
from tests.oracles import unicode_words as oracle
from tests.support.kernel_table import Case, Row

_LINES = (
    "\nDon't 3.50, x_y _x a.b. 1,000;5 can’t... 太郎とカナ aカa ไทยนี้๑๒ बनमस्ते བོད á̧b 9a.b1 a'1 ’a’ ʼx १२.३ a\u200db ក្រ ½3½ Ⅳa"
    " א\"א א'1 א'א a'\u0301b a_カ_1 ‿a ａ＿ｂ ﾊﾟ a\u00adb 1’2 a·b 3:4 Ⓐb ، ٣٫٤ ㌀カ"
)


def _texts(case: Case) -> list[bytes]:
    return [text + _LINES.encode() for text in case.texts]


def _input(case: Case) -> tuple[np.ndarray, np.ndarray]:
    texts = _texts(case)
    return np.cumsum([1, *map(len, texts)], dtype=np.int64), np.frombuffer(b"a" + b"".join(texts) + b"a", np.uint8)


def _arguments(case: Case) -> Sequence[Any]:
    offsets, data = _input(case)
    return [offsets, data, class_table(), unicode_words.role_table(), room_for_spans(len(offsets), len(data))]


def _expected(case: Case) -> tuple[Any, Sequence[Any]]:
    offsets, _ = _input(case)
    spans = [oracle.words(text) for text in _texts(case)]
    rows = [span._replace(start=span.start + offset) for offset, doc in zip(offsets[:-1], spans, strict=True) for span in doc]
    return len(rows), [np.cumsum([0, *map(len, spans)]), *(list(column) for column in zip(*rows))] if rows else [[0], *[[]] * 5]


def _most(case: Case) -> tuple[Any, Sequence[Any]]:
    """A word per first byte of a longer character, and per run of ASCII letters, digits and underscores."""
    count = 0
    for text in _texts(case):
        joins = [byte < 0x80 and (chr(byte).isalnum() or byte == ord("_")) for byte in text]
        count += sum(byte >= 0xC0 for byte in text)
        count += sum(here and not before for before, here in zip([False, *joins], joins))
    return count, []


ROWS = [
    Row(kernel=unicode_words.split_unicode_words, arguments=_arguments, oracle=_expected, from_case=True),
    Row(
        kernel=unicode_words.most_unicode_words,
        arguments=lambda case: [*_input(case), unicode_words.role_table()],
        oracle=_most,
        num_outputs=0,
        from_case=True,
    ),
]
