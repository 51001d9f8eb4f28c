"""Rows of `datapipe/kernels/html/plain.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from datapipe.kernels.html import plain as kernels
from tests.oracles import plain as oracle
from tests.support.kernel_rows.tags import _of_pages as page_arguments
from tests.support.kernel_table import Case, Row


def _outputs(offsets: np.ndarray, data: np.ndarray) -> list[Any]:
    return [offsets, data, np.empty(len(offsets), np.int64), np.empty(len(data), np.uint8)]


def _arguments(case: Case) -> list[Any]:
    return _outputs(case.offsets, case.data)


def _of_pages(case: Case) -> list[Any]:
    return _outputs(*page_arguments(case)[:2])


def _expected(offsets: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    texts = [oracle.plain(data[start:stop].tobytes()) for start, stop in zip(offsets[:-1], offsets[1:])]
    return None, [np.cumsum([0, *map(len, texts)]), np.frombuffer(b"".join(texts), np.uint8)]


ROWS = [
    Row(kernel=kernels.strip_tags, arguments=_arguments, oracle=_expected, num_outputs=2),
    Row(kernel=kernels.strip_tags, arguments=_of_pages, oracle=_expected, num_outputs=2, variant="pages"),
]
