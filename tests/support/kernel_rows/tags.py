"""Rows of `datapipe/kernels/html/tags.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.html import tags as kernels
from tests.oracles import tags as oracle
from tests.support.kernel_table import Case, Row
from tests.support.pages import page_of

_LIMIT = 40


def _arguments(case: Case) -> list[Any]:
    return [case.offsets, case.data, np.zeros(_LIMIT, np.uint64), *(np.empty(len(case.texts), np.int64) for _ in range(3))]


def _of_pages(case: Case) -> list[Any]:
    pages = [b"#", *(page_of(text, case.generator) for text in case.texts)]
    data = np.frombuffer(b"".join(pages), np.uint8)
    return [np.cumsum([len(page) for page in pages], dtype=np.int64), data, *_arguments(case)[2:]]


def _expected(offsets: np.ndarray, data: np.ndarray, stack: np.ndarray) -> tuple[None, list[Any]]:
    pages = [data[start:stop].tobytes() for start, stop in zip(offsets[:-1], offsets[1:])]
    found = [oracle.measures(page, len(stack)) for page in pages]
    return None, [[measure[index] for measure in found] for index in range(3)]


ROWS = [
    Row(kernel=kernels.measure_tags, arguments=_arguments, oracle=_expected, num_outputs=3),
    Row(kernel=kernels.measure_tags, arguments=_of_pages, oracle=_expected, num_outputs=3, variant="pages"),
]
