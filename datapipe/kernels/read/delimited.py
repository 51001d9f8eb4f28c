r"""Delimited text (CSV, TSV) as bytes: where rows end, where the values of some columns are, and
values without their quotes.

    chunks ─▶ find_rows ─▶ rows: start, stop, number of values ─▶ find_values ─▶ spans ─▶ copy_values ─▶ texts

The rules are those of Python's csv module with `doublequote` and without `strict`: RFC 4180 and
what programs write beyond it. A value that begins with the quote goes on to the next single quote;
two quotes in it are one; bytes between its closing quote and the delimiter belong to the value. A
quote inside any other value is text. Rows end with LF, CRLF or CR. Rows without a byte are none.

An escape character and the byte after it belong to the value. The character is dropped before a
quote, a delimiter, a line end and itself, and stays before any other byte: `\n` is no new line.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from datapipe.kernels import inline, kernel
from datapipe.kernels.types import Int64MatrixOut, Int64s, Int64sOut, UInt8s, UInt8sOut

START, FIELD, QUOTED, CLOSED, FIELD_ESCAPE, QUOTED_ESCAPE = range(6)
"""States: at the first byte of a value, in one without quotes, between its quotes, behind the
closing quote, and behind an escape character in a value without quotes, and between them."""

NO_QUOTE = NO_ESCAPE = -1
STATE, ROW_START, NUM_VALUES, LAST_BYTE, IS_BEHIND_BACKSLASH, NUM_ENDING_NO_VALUE = range(6)
"""Entries of `carry`: the state, the start of the current row, its finished values, the last byte, whether a backslash
stands before the closing quote of a value, and how often other bytes than a delimiter or line end follow such a quote."""

Texts: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Offsets (num_texts + 1,) int64 and bytes (num_bytes,) uint8."""

Rows: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Starts, stops and numbers of values of some rows, (num_rows,) int64 each."""

_NEWLINE, _RETURN, _BACKSLASH = 10, 13, 92


class Signs(NamedTuple):
    """The bytes with a meaning; `NO_QUOTE` and `NO_ESCAPE` where values have none."""

    delimiter: int
    quote: int = NO_QUOTE
    escape: int = NO_ESCAPE


@kernel
def find_rows(
    data: UInt8s,  # (num_bytes,) the chunk, which may begin and end anywhere in a row
    signs: Signs,
    # (6,) what the chunk before has left, and then what this one leaves. ROW_START counts from the begin of the chunk, so the
    # caller subtracts the size of this chunk from it before the next; it is negative for a row that began earlier.
    carry: Int64sOut,
    # starts, stops, counts: (num_line_ends,) first byte of each row, first byte behind it, number of values
    starts: Int64sOut,
    stops: Int64sOut,
    counts: Int64sOut,
) -> int:
    """The rows that end in a chunk; returns their number."""
    delimiter, quote, escape = signs
    state, start, num_values, is_behind_backslash = (
        carry[STATE],
        carry[ROW_START],
        carry[NUM_VALUES],
        carry[IS_BEHIND_BACKSLASH],
    )
    num_rows, i, size = 0, 0, len(data)
    while i < size:
        if state == FIELD:
            while i < size and data[i] != delimiter and data[i] != _NEWLINE and data[i] != _RETURN and data[i] != escape:
                i += 1
        elif state == QUOTED:
            while i < size and data[i] != quote and data[i] != escape:
                i += 1
        if i == size:
            break
        byte = data[i]
        if state >= FIELD_ESCAPE:
            state = FIELD if state == FIELD_ESCAPE else QUOTED
        elif byte == escape:
            state = QUOTED_ESCAPE if state == QUOTED else FIELD_ESCAPE
        elif state == QUOTED:
            state = CLOSED
            is_behind_backslash = (data[i - 1] if i else carry[LAST_BYTE]) == _BACKSLASH
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
            if state == CLOSED and is_behind_backslash:
                carry[NUM_ENDING_NO_VALUE] += 1
            state = FIELD
        i += 1
    carry[STATE], carry[ROW_START], carry[NUM_VALUES], carry[IS_BEHIND_BACKSLASH] = (
        state,
        start,
        num_values,
        is_behind_backslash,
    )
    if size:
        carry[LAST_BYTE] = data[size - 1]
    return num_rows


@kernel
def find_values(
    data: UInt8s,
    starts: Int64s,
    stops: Int64s,
    signs: Signs,
    columns: Int64s,
    value_starts: Int64MatrixOut,
    value_stops: Int64MatrixOut,
) -> None:
    """The spans of the values of `columns`, ascending, in rows that have them: (num_columns, num_rows) each."""
    delimiter, quote, escape = signs
    for row in range(len(starts)):
        i, stop, column, wanted = starts[row], stops[row], 0, 0
        while wanted < len(columns):
            start = i
            if i < stop and data[i] == quote:
                i += 1
                while i < stop and (data[i] != quote or (i + 1 < stop and data[i + 1] == quote)):
                    i += 1 + (data[i] == quote or data[i] == escape)
            while i < stop and data[i] != delimiter:
                i += 1 + (data[i] == escape)
            i = min(i, stop)
            if column == columns[wanted]:
                value_starts[wanted, row], value_stops[wanted, row] = start, i
                wanted += 1
            column += 1
            i += 1


@inline
def _copy_byte(data, i, stop, signs, end, out):
    """Copies a byte of a value, and before it an escape character that stays. Returns what follows in both."""
    delimiter, quote, escape = signs
    if data[i] == escape and i + 1 < stop:
        i += 1
        byte = data[i]
        if not (byte == quote or byte == escape or byte == delimiter or byte == _NEWLINE or byte == _RETURN):
            out[end] = escape
            end += 1
    out[end] = data[i]
    return i + 1, end + 1


@kernel
def copy_values(data: UInt8s, starts: Int64s, stops: Int64s, signs: Signs, offsets: Int64sOut, out: UInt8sOut) -> None:
    """The values in spans without quotes and escapes; `out` has the bytes of the spans or more."""
    end, quote = 0, signs.quote
    for value in range(len(starts)):
        offsets[value] = end
        i, stop = starts[value], stops[value]
        if i < stop and data[i] == quote:
            i += 1
            while i < stop and (data[i] != quote or (i + 1 < stop and data[i + 1] == quote)):
                i += data[i] == quote
                i, end = _copy_byte(data, i, stop, signs, end, out)
            i += 1
        while i < stop:
            i, end = _copy_byte(data, i, stop, signs, end, out)
    offsets[len(starts)] = end


class Delimited:
    """Finds rows in chunks, in their order, and values in rows."""

    def __init__(self, delimiter: str, quote: str | None, escape: str | None = None) -> None:
        quoting = NO_QUOTE if quote is None else ord(quote)
        self._signs = Signs(ord(delimiter), quoting, NO_ESCAPE if escape is None else ord(escape))
        self._carry = np.zeros(6, np.int64)

    @property
    def is_quoted(self) -> bool:
        """Whether the row that goes on ends within quotes, so far."""
        return int(self._carry[STATE]) in (QUOTED, QUOTED_ESCAPE)

    @property
    def num_ending_no_value(self) -> int:
        """How many quotes behind a backslash ended no value, so far."""
        return int(self._carry[NUM_ENDING_NO_VALUE])

    @property
    def open_bytes(self) -> int:
        """Bytes of the row that goes on behind the last chunk, so far."""
        return -int(self._carry[ROW_START])

    def rows(self, chunk: bytes) -> Rows:
        """The rows that end in a chunk. A start is negative for a row that began in a chunk before."""
        data = np.frombuffer(chunk, np.uint8)
        most = np.count_nonzero(data == _NEWLINE) + np.count_nonzero(data == _RETURN)
        starts, stops, counts = np.empty((3, most), np.int64)
        num_rows = find_rows(data, self._signs, self._carry, starts, stops, counts)
        self._carry[ROW_START] -= len(data)
        return starts[:num_rows], stops[:num_rows], counts[:num_rows]

    def last_row(self) -> Rows:
        """The row that goes on, as one that ends with the last chunk: it stops at byte 0 of the next."""
        assert not self.is_quoted
        start, num_values = self._carry[ROW_START], self._carry[NUM_VALUES]
        return np.array([start]), np.zeros(1, np.int64), np.array([num_values + 1])

    def columns(self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, wanted: Sequence[int]) -> list[Texts]:
        """The values of some columns, ascending, of rows that have them."""
        columns = np.array(wanted, np.int64)
        value_starts, value_stops = np.empty((2, len(columns), len(starts)), np.int64)
        find_values(data, starts, stops, self._signs, columns, value_starts, value_stops)
        return [self._texts(data, *spans) for spans in zip(value_starts, value_stops)]

    def _texts(self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Texts:
        offsets = np.empty(len(starts) + 1, np.int64)
        out = np.empty(int((stops - starts).sum()), np.uint8)
        copy_values(data, starts, stops, self._signs, offsets, out)
        return offsets, out[: offsets[-1]]
