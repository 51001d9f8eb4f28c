"""Rows of `datapipe/kernels/dedup/contents.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.dedup import contents as kernels
from datapipe.kernels.dedup.word_characters import word_table
from tests.oracles import contents as oracle
from tests.support.kernel_table import Case, Row


def _arguments(case: Case) -> list[Any]:
    return [case.offsets, case.data, word_table(), np.empty(len(case.texts), np.uint8)]


def _with_digits(case: Case) -> list[Any]:
    """The texts without their letters, some with digits in their place."""
    data, offsets = case.data.copy(), case.offsets
    for document, (start, stop) in enumerate(zip(offsets[:-1], offsets[1:])):
        data[start:stop] = np.where(data[start:stop] % 3 == 0, ord("7") if document % 2 else ord("!"), ord(" "))
    data.flags.writeable = False
    return [offsets, data, word_table(), np.empty(len(case.texts), np.uint8)]


def _expected(offsets: np.ndarray, data: np.ndarray, table: np.ndarray) -> tuple[None, list[Any]]:
    return None, [[oracle.content(data[start:stop].tobytes()) for start, stop in zip(offsets[:-1], offsets[1:])]]


ROWS = [
    Row(kernel=kernels.find_contents, arguments=_arguments, oracle=_expected),
    Row(kernel=kernels.find_contents, arguments=_with_digits, oracle=_expected, variant="without letters"),
]
