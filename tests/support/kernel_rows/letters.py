"""Rows of `datapipe/kernels/filters/letters.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.filters import letters
from datapipe.kernels.text.unicode_classes import class_table
from tests.oracles.words import characters, kind
from tests.support.kernel_table import Case, Row

_LETTER = 1


def _arguments(case: Case) -> list[Any]:
    starts, stops = case.offsets[:-1], case.offsets[1:].copy()
    return [starts, stops, case.data, class_table(), np.empty(len(case.texts), np.int64)]


def _expected(starts: np.ndarray, stops: np.ndarray, data: np.ndarray, _classes: np.ndarray) -> tuple[None, list[Any]]:
    texts = [data[start:stop].tobytes() for start, stop in zip(starts, stops)]
    return None, [[sum(kind(character) == _LETTER for _, character, _ in characters(text)) for text in texts]]


ROWS = [Row(kernel=letters.count_letters, arguments=_arguments, oracle=_expected)]
