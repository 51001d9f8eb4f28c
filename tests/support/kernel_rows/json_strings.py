"""Rows of `datapipe/kernels/text/json_strings.py`."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from datapipe.kernels.text import json_strings as kernels
from tests.oracles import json_strings as oracle
from tests.support.kernel_table import Case, Row

_CONTROLS = bytes(range(33)) + b'"\\\x7f/'


def _texts(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The texts of the case, each with every character that is escaped, or with one."""
    texts = [text + _CONTROLS[number % 40 :] for number, text in enumerate([*case.texts, b"", _CONTROLS])]
    return np.cumsum([2, *map(len, texts)], dtype=np.int64), np.frombuffer(b"\n\n" + b"".join(texts) + b'"', np.uint8)


def _quoted(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [oracle.quoted(data[start:stop].tobytes()) for start, stop in pairwise(offsets.tolist())]


def _measure_arguments(case: Case) -> list[Any]:
    offsets, data = _texts(case)
    return [offsets, data, np.empty(len(offsets), np.int64)]


def _write_arguments(case: Case) -> list[Any]:
    offsets, data = _texts(case)
    return [offsets, data, np.empty(sum(map(len, _quoted(offsets, data))), np.uint8)]


def _measured(offsets: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    return None, [list(accumulate(map(len, _quoted(offsets, data)), initial=0))]


def _written(offsets: np.ndarray, data: np.ndarray) -> tuple[None, list[Any]]:
    return None, [list(b"".join(_quoted(offsets, data)))]


ROWS = [
    Row(kernel=kernels.measure_quoted, arguments=_measure_arguments, oracle=_measured),
    Row(kernel=kernels.write_quoted, arguments=_write_arguments, oracle=_written),
]
