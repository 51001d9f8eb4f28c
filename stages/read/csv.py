"""Delimited text: CSV and TSV, one row a document, plain or in an archive.

    file ─▶ rows (`_rows.py`) ─▶ header: which columns ─▶ UTF-8? as many values as the header? ─▶ texts ─▶ batches

A value is text as it is written. The rules of quotes are those of Python's csv module (`kernels/read/delimited.py`). A
document's position is the byte at which its row begins in the decompressed file. A damaged row affects no other row, except
that a quote which is never closed takes the rest of the file. Memory is a few blocks of 4 MiB, or a few times the longest row.

Arrow's CSV reader is five times as fast and is not used: it has no offsets of rows, and fails for a
whole block with one invalid byte. This one reads 270 MB/s on a core, as much as JSON lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from datapipe.columns import compute as pc
from datapipe.columns import texts_from
from datapipe.dataclass import dataclass, replace
from datapipe.kernels.read.delimited import Delimited
from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Rejected, Split
from datapipe.stage.decoding import byte_ranges, chunks, is_one_text, too_long
from stages.read._content_reader import ContentReader
from stages.read._json.lines import undecodable
from stages.read._rows import Rows, row_blocks

_NO_QUOTE = "none"
_EXPECTED_OTHER = "Expected another character, or another `delimiter`: the default is a tab for .tsv files, else a comma"
_LISTED_CHARS = 300
_BATCH_ROWS = 8192


class Csv(ContentReader):
    """Reads each row of a CSV or TSV file as a document. The first row names the columns, or `column_names` does.

    All values are text, as they are written; an empty id counts as no id. A row with more or fewer values than columns is
    quarantined. Blank lines are skipped. Files are UTF-8.
    """

    extensions: ClassVar[tuple[str, ...]] = (".csv", ".tsv")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    delimiter: str | None = Field(
        default=None, description="The character between values. Default: a tab for .tsv files, else a comma."
    )
    quote: str = Field(
        default='"',
        description="The character around values with delimiters, quotes or new lines. none: values have no quotes; "
        "plain files are then read in parallel ranges.",
    )
    escape: str | None = Field(
        default=None,
        description="The character before a quote, delimiter or new line that belongs to a value: '\\\\' for values written "
        'as "a \\\\"b\\\\"". none: there is none. Default: none, but a file that seems to escape quotes by backslashes is '
        "refused.",
    )
    column_names: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="Names of the columns, for files whose first row is no header."
    )
    max_row_bytes: int = Field(
        default=512 << 20,
        ge=1024,
        lt=1 << 31,
        description="Maximum bytes of a row. Longer rows are quarantined, and not held in memory.",
    )

    @field_validator("delimiter", "quote", "escape")
    @classmethod
    def _check_character(cls, value: str | None) -> str | None:
        if value is None or value == _NO_QUOTE or (len(value) == 1 and "\0" < value <= "~" and value not in "\r\n"):
            return value
        raise ValueError("expected one ASCII character that ends no line")

    def check_options(self) -> None:
        if self.delimiter == _NO_QUOTE:
            raise ValueError("delimiter: expected one ASCII character that ends no line")
        delimiters = self.delimiter or ",\t"
        if self.quote in delimiters:
            raise ValueError(f"quote is the delimiter. {_EXPECTED_OTHER}")
        if self.escape is not None and self.escape in (*delimiters, self.quote) and self.escape != _NO_QUOTE:
            raise ValueError(f"escape is the quote or the delimiter. {_EXPECTED_OTHER}. Quotes may always be doubled")
        if self.column_names is not None and len(set(self.column_names)) < len(self.column_names):
            raise ValueError("column_names: expected each name once")

    def probe_large(self, file: InputFile, open_input: OpenInput) -> InputFile:
        """Checks whether the file has lines, where it would be cut at them."""
        return replace(file, is_one_text=self._has_line_rows(file) and is_one_text(file, open_input))

    def _has_line_rows(self, file: InputFile) -> bool:
        return file.compression is None and self.quote == _NO_QUOTE and self._escape is None

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Byte ranges of a plain file without quotes and escapes, whose rows are lines; any other file is one split."""
        is_cut = self._has_line_rows(file) and not file.is_one_text
        return byte_ranges(file, target_bytes) if is_cut else [Split(file=file)]

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        table: _Table | None = None
        for rows in self._blocks(split, open_input):
            if isinstance(rows, Rejected):
                if table is None and split.start == 0 and self.column_names is None and not rows.is_file_damage:
                    yield ReadBatch.of_rejected(replace(rows, error=f"the header: {rows.error}", is_file_damage=True))
                    return
                yield ReadBatch.of_rejected(rows)
                continue
            documents = rows
            if table is None:
                header = self._header(split, rows, open_input)
                parsed = header if isinstance(header, Rejected) else _table_of(header, fields, self.max_row_bytes)
                if isinstance(parsed, Rejected):
                    yield from [ReadBatch.of_rejected(parsed)] if split.start == 0 else []
                    return
                table = parsed
                documents = self._without_header(split, rows)
            yield from table.batches(documents, self._delimited(split.file))

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """The columns of the header; the rows of the first block count as probed."""
        first = next((rows for rows in self._blocks(split, open_input) if isinstance(rows, Rows)), None)
        header = None if first is None else self._header(split, first, open_input)
        if first is None or header is None or isinstance(header, Rejected):
            return FieldsSeen()
        num_rows, wanted = len(self._without_header(split, first).starts), fields.wanted
        if not num_rows or any(header.count(name) > 1 for name in wanted):  # `read` reports it
            return FieldsSeen()
        found = frozenset(wanted) & frozenset(header)
        types = {name: pa.large_string() for name in fields.keep if name in found}
        return FieldsSeen(num_records=num_rows, found=found, names=header, types=types)

    def _blocks(self, split: Split, open_input: OpenInput) -> Iterator[Rows | Rejected]:
        delimited, refuses_escapes = self._delimited(split.file), self.escape is None
        content = chunks(split, open_input, self.max_window_bytes)
        return row_blocks(content, delimited, self.max_row_bytes, refuses_escapes=refuses_escapes)

    @property
    def _escape(self) -> str | None:
        return None if self.escape == _NO_QUOTE else self.escape

    def _delimited(self, file: InputFile) -> Delimited:
        name = file.path.lower()
        is_tsv = name.endswith(".tsv") or (file.compression is not None and name.rpartition(".")[0].endswith(".tsv"))
        quote = None if self.quote == _NO_QUOTE else self.quote
        return Delimited(self.delimiter or ("\t" if is_tsv else ","), quote, self._escape)

    def _without_header(self, split: Split, first: Rows) -> Rows:
        has_header = split.start == 0 and self.column_names is None
        return first.part(1, len(first.starts)) if has_header else first

    def _header(self, split: Split, first: Rows, open_input: OpenInput) -> tuple[str, ...] | Rejected:
        """The names of the columns; `first` are the first rows of the split."""
        if self.column_names is not None:
            return self.column_names
        beginning = next(self._blocks(Split(file=split.file), open_input)) if split.start else first
        if isinstance(beginning, Rejected):  # the split at the beginning reports it
            return beginning
        row = beginning.part(0, 1)
        is_long = row.stops[0] - row.starts[0] > self.max_row_bytes
        error = too_long(self.max_row_bytes, "row") if is_long else _not_text(row).get(0)
        if error is not None:
            error = f"the header: {error}"
            return Rejected(position=row.byte_offset, error=error, excerpt=row.excerpt(0), is_file_damage=True)
        data = np.frombuffer(row.content, np.uint8)
        columns = self._delimited(split.file).columns(data, row.starts, row.stops, range(int(row.counts[0])))
        return tuple(texts_from(*column)[0].as_py() for column in columns)


def _not_text(rows: Rows) -> dict[int, str]:
    errors = undecodable(rows.content, rows.starts, rows.stops, "a NUL byte; expected a row of text without it")
    return {row: error.replace("a line of", "a row of") for row, error in errors.items()}


def _table_of(header: tuple[str, ...], fields: FieldNames, max_row_bytes: int) -> _Table | Rejected:
    """The columns that become documents; or the damage of a file whose header lacks the content or names a column twice."""
    listed = shorten(", ".join(header), _LISTED_CHARS, placeholder=" …")
    wanted = dict.fromkeys((*fields.wanted, fields.id))
    twice = next((name for name in wanted if header.count(name) > 1), None)
    if twice is None and fields.content in header:
        numbers = {name: number for number, name in enumerate(header) if name in wanted}
        return _Table(num_columns=len(header), numbers=numbers, fields=fields, max_row_bytes=max_row_bytes)
    error = f"the header has no column '{fields.content}'; it names {listed}"
    if twice is not None:
        error = f"the header names '{twice}' {header.count(twice)} times, expected once: {listed}"
    return Rejected(position=0, error=error, is_file_damage=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """How the rows of a file become documents, by the numbers of the wanted columns that the file has, by name, ascending."""

    num_columns: int
    numbers: dict[str, int]
    fields: FieldNames
    max_row_bytes: int

    def batches(self, rows: Rows, delimited: Delimited) -> Iterator[ReadBatch]:
        """The documents of some rows in batches; one batch at least."""
        for first in range(0, max(1, len(rows.starts)), _BATCH_ROWS):
            yield self._documents(rows.part(first, first + _BATCH_ROWS), delimited)

    def _documents(self, rows: Rows, delimited: Delimited) -> ReadBatch:
        errors = self._errors(rows)
        good = np.ones(len(rows.starts), bool)
        good[list(errors)] = False
        starts, stops = rows.starts[good], rows.stops[good]
        columns = delimited.columns(np.frombuffer(rows.content, np.uint8), starts, stops, list(self.numbers.values()))
        columns = dict(zip(self.numbers, (texts_from(*column) for column in columns)))
        nulls = pa.nulls(len(starts), pa.large_string())
        ids = columns.get(self.fields.id, nulls)
        ids = pc.if_else(pc.equal(ids, ""), nulls, ids)
        rejected = (
            Rejected(
                position=rows.byte_offset + int(rows.starts[row]),
                error=errors[row],
                excerpt=rows.excerpt(row),
                is_file_damage=row == len(rows.starts) - 1 and self._is_cut(rows),
            )
            for row in sorted(errors)
        )
        return ReadBatch(
            positions=(starts + rows.byte_offset).astype(np.uint64),
            content=columns[self.fields.text] if self.fields.text else pa.repeat(pa.scalar("", ids.type), len(starts)),
            ids=ids,
            extra={name: columns.get(name, nulls) for name in self.fields.keep},
            rejected=tuple(rejected),
            input_bytes=len(rows.content),
        )

    def _is_cut(self, rows: Rows) -> bool:
        return rows.is_unended and len(rows.counts) > 0 and int(rows.counts[-1]) < self.num_columns

    def _errors(self, rows: Rows) -> dict[int, str]:
        errors: dict[int, str] = {}
        for row in np.flatnonzero(rows.counts != self.num_columns).tolist():
            count = int(rows.counts[row])
            errors[row] = f"{count} value{'s' if count > 1 else ''}, expected {self.num_columns}, one for each column"
        if self._is_cut(rows):
            last = len(rows.counts) - 1
            errors[last] = f"the file is cut off: it ends within its last row, which has {errors[last]}"
        errors |= _not_text(rows)
        long = np.flatnonzero(rows.stops - rows.starts > self.max_row_bytes).tolist()
        return errors | dict.fromkeys(long, too_long(self.max_row_bytes, "row"))
