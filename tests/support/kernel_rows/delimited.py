"""Rows of `datapipe/kernels/read/delimited.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from datapipe.kernels.read import delimited as kernels
from tests.oracles import delimited as oracle
from tests.support.kernel_table import Case, Row

_ENDS = [b"\n", b"\r\n", b"\r", b"\n\n"]


def _table(case: Case, signs: kernels.Signs) -> bytes:
    """Rows of the texts of the case: some quoted as a writer does, some as they are, whatever stands in them."""
    sign, between = bytes([max(signs.quote, 34)]), bytes([signs.delimiter])
    values = [text if number % 3 else sign + text.replace(sign, sign * 2) + sign for number, text in enumerate(case.texts)]
    rows = [between.join(values[number : number + 1 + number % 4]) for number in range(len(values))]
    odd = [
        sign + b"a" + sign + b"b" + sign + between + b"c",
        between * 2,
        sign * 2,
        sign * 6 + b"x",
        b"a" + sign + between + sign,
        sign + b"say \\" + sign + b"hi\\" + sign + between + b"\\n\\\\" + sign + between + b"a\\" + between + b"b\\",
    ]
    return b"".join(row + _ENDS[number % 4] for number, row in enumerate([*odd, *rows]))


def _found(data: np.ndarray, signs: kernels.Signs) -> list[oracle.Row]:
    return oracle.rows(data.tobytes(), *signs)


def _rows_row(name: str, signs: kernels.Signs) -> Row:
    def arguments(case: Case) -> Sequence[Any]:
        data = np.frombuffer(_table(case, signs), np.uint8)
        room = np.count_nonzero(data == 10) + np.count_nonzero(data == 13)
        return [data, signs, np.zeros(6, np.int64), *(np.zeros(room, np.int64) for _ in range(3))]

    def expected(data: np.ndarray, signs: kernels.Signs) -> tuple[Any, Sequence[Any]]:
        found = _found(data, signs)
        ended = [row for row in found if row.has_end]
        outputs = [[row.start for row in ended], [row.stop for row in ended], [len(row.values) for row in ended]]
        return len(ended), [[], *outputs]

    return Row(kernel=kernels.find_rows, arguments=arguments, oracle=expected, num_outputs=4, variant=name)


def _values_row(name: str, signs: kernels.Signs) -> Row:
    def arguments(case: Case) -> Sequence[Any]:
        data = np.frombuffer(_table(case, signs), np.uint8)
        rows = [row for row in _found(data, signs) if row.has_end and len(row.values) >= 2]
        starts, stops = (np.array([row[number] for row in rows], np.int64) for number in (0, 1))
        spans = [np.zeros((2, len(rows)), np.int64) for _ in range(2)]
        return [data, starts, stops, signs, np.arange(2), *spans]

    def expected(data: np.ndarray, starts: np.ndarray, *_: Any) -> tuple[Any, Sequence[Any]]:
        by_start = {row.start: row.values for row in _found(data, signs)}
        values = [by_start[start] for start in starts.tolist()]
        return None, [[[spans[column][side] for spans in values] for column in (0, 1)] for side in (0, 1)]

    return Row(kernel=kernels.find_values, arguments=arguments, oracle=expected, num_outputs=2, variant=name)


def _copy_row(name: str, signs: kernels.Signs) -> Row:
    def arguments(case: Case) -> Sequence[Any]:
        data = np.frombuffer(_table(case, signs), np.uint8)
        rows = [row for row in _found(data, signs) if row.has_end]
        starts, stops = (np.array([span[side] for row in rows for span in row.values], np.int64) for side in (0, 1))
        out = np.zeros(int((stops - starts).sum()), np.uint8)
        return [data, starts, stops, signs, np.zeros(len(starts) + 1, np.int64), out]

    def expected(data: np.ndarray, starts: np.ndarray, stops: np.ndarray, signs: kernels.Signs) -> tuple[Any, Sequence[Any]]:
        spans = zip(starts.tolist(), stops.tolist())
        values = [oracle.unquoted(data[start:stop].tobytes(), *signs) for start, stop in spans]
        offsets = np.cumsum([0, *map(len, values)]).tolist()
        return None, [offsets, list(b"".join(values))]

    return Row(kernel=kernels.copy_values, arguments=arguments, oracle=expected, num_outputs=2, variant=name)


_DIALECTS = {
    "csv": kernels.Signs(44, 34),
    "tsv": kernels.Signs(9, 39),
    "no quotes": kernels.Signs(44),
    "backslashes": kernels.Signs(44, 34, 92),
    "backslashes, no quotes": kernels.Signs(9, escape=92),
}

ROWS = [make(name, signs) for make in (_rows_row, _values_row, _copy_row) for name, signs in _DIALECTS.items()]
