"""Rows of `datapipe/kernels/text/raw_lines.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.text import raw_lines
from datapipe.kernels.text.words import Lines, find_lines
from tests.oracles import raw_lines as oracle
from tests.support.kernel_table import Case, Row


def _texts(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start:stop].tobytes() for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]


def _line_arguments(case: Case) -> Sequence[Any]:
    with np.errstate(over="ignore"):
        lines = find_lines(case.offsets, case.data)
    room = len(lines.starts)
    outputs = [np.zeros(room, np.uint64), np.zeros(room, np.int32), np.zeros(room, np.uint8)]
    return [case.offsets, case.data, lines, *outputs]


def _lines(offsets: np.ndarray, data: np.ndarray, _: Lines) -> tuple[Any, Sequence[Any]]:
    rows = [line for text in _texts(offsets, data) for line in oracle.of_text(text)]
    return None, [list(column) for column in zip(*rows)] if rows else [[], [], []]


def _total_arguments(case: Case) -> Sequence[Any]:
    return [case.offsets, case.data, np.zeros((len(case.texts), 4), np.int64)]


def _totals(offsets: np.ndarray, data: np.ndarray) -> tuple[Any, Sequence[Any]]:
    return None, [[oracle.totals(text) for text in _texts(offsets, data)]]


ROWS = [
    Row(kernel=raw_lines.widen_lines, arguments=_line_arguments, oracle=_lines, num_outputs=3),
    Row(kernel=raw_lines.count_totals, arguments=_total_arguments, oracle=_totals),
]
