"""Delimited text (CSV, TSV) as bytes: where rows end, where the values of some columns are, and values without their quotes.

    chunks ─▶ find_rows ─▶ rows: start, stop, number of values ─▶ find_values ─▶ spans ─▶ copy_values ─▶ texts

The rules are those of Python's csv module with `doublequote` and without `strict`, which are RFC 4180 and what programs write
beyond it: a value that begins with the quote goes on to the next single quote, whatever stands in it; two quotes in it are one;
bytes between its closing quote and the delimiter belong to the value. A quote inside any other value is text. Rows end with LF,
CRLF or CR. Rows without a byte are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from datapipe.kernels import kernel
from datapipe.kernels.types import Int64MatrixOut, Int64s, Int64sOut, UInt8s, UInt8sOut

START, FIELD, QUOTED, CLOSED = range(4)
"""States: at the first byte of a value, in one without quotes, between its quotes, behind the closing quote."""

NO_QUOTE = -1
STATE, ROW_START, NUM_VALUES = range(3)
"""Entries of `carry`: the state, the start of the row that goes on, and its values that have ended."""

Texts: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Offsets (num_texts + 1,) int64 and bytes (num_bytes,) uint8."""

Rows: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Starts, stops and numbers of values of some rows, (num_rows,) int64 each."""

_NEWLINE, _RETURN = 10, 13


@kernel
def find_rows(
    data: UInt8s, delimiter: int, quote: int, carry: Int64sOut, starts: Int64sOut, stops: Int64sOut, counts: Int64sOut
) -> int:
    """The rows that end in a chunk; returns their number.

    Args:
        data: (num_bytes,) the chunk, which may begin and end anywhere in a row.
        quote: a byte; `NO_QUOTE` where values have no quotes.
        carry: (3,) what the chunk before has left, and then what this one leaves. ROW_START counts from the begin of the chunk,
            so the caller subtracts the size of this chunk from it before the next; it is negative for a row that began earlier.
        starts, stops, counts: (num_line_ends,) first byte of each row, first byte behind it, number of values.
    """
    state, start, num_values = carry[0], carry[1], carry[2]
    num_rows, i, size = 0, 0, len(data)
    while i < size:
        if state == FIELD:
            while i < size and data[i] != delimiter and data[i] != _NEWLINE and data[i] != _RETURN:
                i += 1
        elif state == QUOTED:
            while i < size and data[i] != quote:
                i += 1
        if i == size:
            break
        byte = data[i]
        if state == QUOTED:
            state = CLOSED
        elif byte == quote and state != FIELD:
            state = QUOTED
        elif byte == delimiter:
            state = START
            num_values += 1
        elif byte == _NEWLINE or byte == _RETURN:
            if start < i:
                starts[num_rows], stops[num_rows], counts[num_rows] = start, i, num_values + 1
                num_rows += 1
            state, start, num_values = START, i + 1, 0
        else:
            state = FIELD
        i += 1
    carry[0], carry[1], carry[2] = state, start, num_values
    return num_rows


@kernel
def find_values(
    data: UInt8s,
    starts: Int64s,
    stops: Int64s,
    delimiter: int,
    quote: int,
    columns: Int64s,
    value_starts: Int64MatrixOut,
    value_stops: Int64MatrixOut,
) -> None:
    """The spans of some columns' values in rows that have them: (num_columns, num_rows) each.

    Args:
        starts, stops: (num_rows,) of the rows.
        columns: (num_columns,) numbers of the columns, ascending.
    """
    for row in range(len(starts)):
        i, stop, column, wanted = starts[row], stops[row], 0, 0
        while wanted < len(columns):
            start = i
            if i < stop and data[i] == quote:
                i += 1
                while i < stop and (data[i] != quote or (i + 1 < stop and data[i + 1] == quote)):
                    i += 1 + (data[i] == quote)
            while i < stop and data[i] != delimiter:
                i += 1
            if column == columns[wanted]:
                value_starts[wanted, row], value_stops[wanted, row] = start, i
                wanted += 1
            column += 1
            i += 1


@kernel
def copy_values(data: UInt8s, starts: Int64s, stops: Int64s, quote: int, offsets: Int64sOut, out: UInt8sOut) -> None:
    """The values in some spans without their quotes, one behind the other.

    Args:
        starts, stops: (num_values,) of the values.
        offsets: (num_values + 1,) where each value begins in `out`.
        out: at least as many bytes as the spans have.
    """
    end = 0
    for value in range(len(starts)):
        offsets[value] = end
        i, stop = starts[value], stops[value]
        if i < stop and data[i] == quote:
            i += 1
            while i < stop and (data[i] != quote or (i + 1 < stop and data[i + 1] == quote)):
                i += data[i] == quote
                out[end] = data[i]
                i += 1
                end += 1
            i += 1
        while i < stop:
            out[end] = data[i]
            i += 1
            end += 1
    offsets[len(starts)] = end


class Delimited:
    """Finds rows in chunks, in their order, and values in rows."""

    def __init__(self, delimiter: str, quote: str | None) -> None:
        self._delimiter, self._quote = ord(delimiter), NO_QUOTE if quote is None else ord(quote)
        self._carry = np.zeros(3, np.int64)

    @property
    def is_quoted(self) -> bool:
        """Whether the row that goes on ends within quotes, so far."""
        return int(self._carry[STATE]) == QUOTED

    @property
    def open_bytes(self) -> int:
        """Bytes of the row that goes on behind the last chunk, so far."""
        return -int(self._carry[ROW_START])

    def rows(self, chunk: bytes) -> Rows:
        """The rows that end in a chunk. A start is negative for a row that began in a chunk before."""
        data = np.frombuffer(chunk, np.uint8)
        most = np.count_nonzero(data == _NEWLINE) + np.count_nonzero(data == _RETURN)
        starts, stops, counts = np.empty((3, most), np.int64)
        num_rows = find_rows(data, self._delimiter, self._quote, self._carry, starts, stops, counts)
        self._carry[ROW_START] -= len(data)
        return starts[:num_rows], stops[:num_rows], counts[:num_rows]

    def last_row(self) -> Rows:
        """The row that goes on, as one that ends with the last chunk: it stops at byte 0 of the next."""
        state, start, num_values = self._carry.tolist()
        assert state != QUOTED
        return np.array([start]), np.zeros(1, np.int64), np.array([num_values + 1])

    def columns(self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, wanted: Sequence[int]) -> list[Texts]:
        """The values of some columns, ascending, of rows that have them."""
        columns = np.array(wanted, np.int64)
        value_starts, value_stops = np.empty((2, len(columns), len(starts)), np.int64)
        find_values(data, starts, stops, self._delimiter, self._quote, columns, value_starts, value_stops)
        return [self._texts(data, *spans) for spans in zip(value_starts, value_stops)]

    def _texts(self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Texts:
        offsets = np.empty(len(starts) + 1, np.int64)
        out = np.empty(int((stops - starts).sum()), np.uint8)
        copy_values(data, starts, stops, self._quote, offsets, out)
        return offsets, out[: offsets[-1]]
