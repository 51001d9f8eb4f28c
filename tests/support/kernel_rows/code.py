"""Rows of `datapipe/kernels/filters/code.py`: the texts with encoded data, whole and in fragments, between and inside them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.filters import code as kernels
from datapipe.kernels.text.unicode_classes import class_table
from tests.oracles import code as oracle
from tests.support.kernel_table import Case, Row

_MARKERS = (b"generated", b"do not edit", b"the", b"aab", "é".encode())
_SIZES = (1, 2, 7, 8, 9, 20)
_UNITS = (
    b"12",
    b"ab,",
    b"0x1F,",
    b"\\x48",
    b"7f ",
    b"00\n",
    b"\\u00e9",
    b"A+/=",
    b"aaaaaaaaaaa",
    b"0x12, ",
    b"\xc3\xa9",
    b"\\",
)


def _column(case: Case, extra: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    rng = random.Random(case.seed)
    texts: list[bytes] = []
    for text in case.texts:
        index = rng.randint(0, len(text))
        inside = b"".join(rng.choice(extra) * rng.choice(_SIZES) for _ in range(rng.randint(0, 4)))
        texts.append(text[:index] + inside + text[index:])
    return np.cumsum([2, *map(len, texts)], dtype=np.int64), np.frombuffer(b"a\\" + b"".join(texts) + b"x12,\n", np.uint8)


def _texts(offsets: np.ndarray, data: np.ndarray) -> list[bytes]:
    return [data[start:stop].tobytes() for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]


def _code_arguments(case: Case) -> Sequence[Any]:
    return [case.offsets, case.data, class_table(), np.zeros((len(case.texts), 6))]


def _code(offsets: np.ndarray, data: np.ndarray, _: np.ndarray) -> tuple[Any, Sequence[Any]]:
    return None, [list(map(oracle.measures, _texts(offsets, data)))]


def _encoded_arguments(case: Case) -> Sequence[Any]:
    return [*_column(case, _UNITS), kernels.BYTE_KINDS, np.zeros((len(case.texts), 2), np.int64)]


def _encoded(offsets: np.ndarray, data: np.ndarray, _: np.ndarray) -> tuple[Any, Sequence[Any]]:
    return None, [list(map(oracle.encoded, _texts(offsets, data)))]


def _line_arguments(case: Case) -> Sequence[Any]:
    return [case.offsets, case.data, case.seed % 4, np.zeros(len(case.texts), np.int64)]


def _line_stops(offsets: np.ndarray, data: np.ndarray, num_lines: int) -> tuple[Any, Sequence[Any]]:
    sizes = [len(oracle.beginning(text, num_lines)) for text in _texts(offsets, data)]
    return None, [[start + size for start, size in zip(offsets[:-1].tolist(), sizes, strict=True)]]


def _marker_arguments(case: Case) -> Sequence[Any]:
    offsets, data = _column(case, [b"GENERATED", b"do not", b" edit", b"aa", b"ab", b"\xc3"])
    stops = case.generator.integers(offsets[:-1], offsets[1:] + 1)
    markers = np.frombuffer(b"".join(_MARKERS), np.uint8)
    return [offsets, stops, data, np.cumsum([0, *map(len, _MARKERS)]), markers, np.zeros(len(case.texts), np.uint8)]


def _markers(offsets: np.ndarray, stops: np.ndarray, data: np.ndarray, *_: np.ndarray) -> tuple[Any, Sequence[Any]]:
    texts = [data[start:stop].tobytes().lower() for start, stop in zip(offsets[:-1], stops, strict=True)]
    return None, [[any(marker in text for marker in _MARKERS) for text in texts]]


ROWS = [
    Row(kernel=kernels.measure_code, arguments=_code_arguments, oracle=_code),
    Row(kernel=kernels.measure_encoded, arguments=_encoded_arguments, oracle=_encoded),
    Row(kernel=kernels.first_lines, arguments=_line_arguments, oracle=_line_stops),
    Row(kernel=kernels.find_markers, arguments=_marker_arguments, oracle=_markers),
]
