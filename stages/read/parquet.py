"""Parquet: one row, one document, by row groups.

    footer ─▶ row groups of this split ─▶ the columns that are needed, batch by batch ─▶ columns

A dot in a field's name reaches into structs, unless a column has that very name. Memory is one batch, of about
`TARGET_BATCH_BYTES` by the footer's sizes, and the pages it is read from.

Damage costs what is behind it in its row group and nothing else, however row groups are made into splits. How many rows that
is may be past knowing, so it is one reject.

Measured on one core of a 2-core AMD EPYC, texts of 2.8 kB beside integer ids in zstd pages: 680 MB/s of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import as_large_string
from datapipe.errors import DatapipeError, UserError
from datapipe.stage import FieldNames, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split
from datapipe.stage.documents import TARGET_BATCH_BYTES

_BATCH_ROWS = 8192
_BROKEN = (pa.ArrowException, ValueError, OSError)
"""What Arrow raises for damaged content, all of it seen with random bytes flipped: thrift and IPC errors come as OSError."""
_NO_VALUE = (pa.ArrowException, ValueError, OverflowError, KeyError)
"""What making a value of Python's raises: a date out of all calendars, a time zone unknown to this machine."""


class Parquet(Reader):
    """One row a document. Text must be a string (or binary UTF-8); ids of any simple type become strings; fields under `keep:`
    keep their types, strings as large strings."""

    extensions: ClassVar[tuple[str, ...]] = (".parquet", ".pq")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    def probe(self, file: InputFile, open_input: OpenInput) -> tuple[tuple[int, int], ...]:
        """Rows and bytes of each row group; none where the footer cannot be read, which `read` then rejects."""
        if file.compression is not None:
            raise UserError(
                f"{file.url}: Parquet inside {file.compression} cannot be read in parts. Unpack it; Parquet compresses"
            )
        with open_input(file.url) as stream:
            watched = _Watched(stream)
            try:
                return _pieces(watched.parquet())
            except _BROKEN as error:
                watched.raise_if_at_fault(error)
                return ()

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Runs of row groups of about `target_bytes` of uncompressed columns."""
        splits: list[Split] = []
        start = size = 0
        for number, (_, num_bytes) in enumerate(file.pieces):
            size += num_bytes
            if size >= target_bytes:
                splits.append(Split(file=file, start=start, stop=number + 1))
                start, size = number + 1, 0
        if start < len(file.pieces) or not splits:
            splits.append(Split(file=file, start=start, stop=len(file.pieces) if file.pieces else None))
        return splits

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        pieces = split.file.pieces
        row = sum(num_rows for num_rows, _ in pieces[: split.start])
        with open_input(split.file.url) as stream:
            watched = _Watched(stream)
            try:
                file = watched.parquet()
                names = _columns_to_read(file.schema_arrow, fields)
                found = _pieces(file)
            except _BROKEN as error:
                watched.raise_if_at_fault(error)
                yield _nothing(Rejected(place=row, error=f"the Parquet file is damaged: {_on_one_line(error)}"))
                return
            if found != pieces:
                raise DatapipeError(f"{split.file.url}: not the row groups that planning found. Run again to plan anew.")
            for number in range(split.start, len(pieces) if split.stop is None else split.stop):
                group = _RowGroup(number=number, first_row=row, num_rows=pieces[number][0], num_bytes=pieces[number][1])
                yield from group.read(file, names, fields, watched)
                row += group.num_rows

    def read_one(self, file: InputFile, place: int, fields: FieldNames, open_input: OpenInput) -> str | None:
        row = 0
        for number, (num_rows, _) in enumerate(file.pieces):
            if row <= place < row + num_rows:
                for batch in self.read(Split(file=file, start=number, stop=number + 1), fields, open_input):
                    at = np.flatnonzero(batch.places == place)
                    if len(at):
                        return batch.texts[int(at[0])].as_py()
            row += num_rows
        return None


class _Watched:
    """A file that remembers what storage raised while Arrow read it: of damaged content Arrow makes OSErrors, too."""

    closed = False

    def __init__(self, stream: pa.NativeFile) -> None:
        self.stream = stream
        self.error: Exception | None = None

    def parquet(self) -> pq.ParquetFile:
        """The file opened; memory, mapped or not, raises nothing and is read without a copy."""
        direct = isinstance(self.stream, (pa.MemoryMappedFile, pa.BufferReader))
        source: Any = self.stream if direct else pa.PythonFile(self, mode="r")
        return pq.ParquetFile(source, page_checksum_verification=True)

    def raise_if_at_fault(self, error: BaseException) -> None:
        """Raises what storage or memory did to us; returns where the content is at fault."""
        if self.error is not None:
            raise self.error
        if isinstance(error, MemoryError):
            raise error

    def read(self, num_bytes: int = -1) -> bytes:
        try:
            return self.stream.read(None if num_bytes < 0 else num_bytes)
        except Exception as error:
            self.error = error
            raise

    def seek(self, position: int, whence: int = 0) -> int:
        return self.stream.seek(position, whence)

    def tell(self) -> int:
        return self.stream.tell()

    def close(self) -> None:
        """The stream is closed by who opened it."""


def _pieces(file: pq.ParquetFile) -> tuple[tuple[int, int], ...]:
    """Rows and bytes of each row group. Raises what `_BROKEN` holds where the footer makes no sense."""
    _ = file.schema_arrow  # taken from the footer on first use
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    pieces = tuple((group.num_rows, group.total_byte_size) for group in groups)
    if any(num_rows < 0 or num_bytes < 0 for num_rows, num_bytes in pieces):
        raise ValueError("the footer tells of row groups of less than no rows or bytes")
    return pieces


@dataclass(frozen=True, kw_only=True, slots=True)
class _RowGroup:
    """One row group, the first row of which is the file's row `first_row`."""

    number: int
    first_row: int
    num_rows: int
    num_bytes: int

    def read(self, file: pq.ParquetFile, names: list[str], fields: FieldNames, watched: _Watched) -> Iterator[ReadBatch]:
        """Its documents, and one reject for all that is behind damage."""
        row, stop = self.first_row, self.first_row + self.num_rows
        try:
            for batch in file.iter_batches(self._batch_rows(), [self.number], names, use_threads=False):
                if row + batch.num_rows > stop:
                    raise ValueError(f"more rows than the {self.num_rows} that the footer tells of")
                yield _documents(batch, row, fields)
                row += batch.num_rows
            if row < stop:
                raise ValueError(f"fewer rows than the {self.num_rows} that the footer tells of")
        except _BROKEN as error:
            watched.raise_if_at_fault(error)
            damage = f"row group {self.number} of the Parquet file is damaged from row {row} on"
            yield _nothing(Rejected(place=row, error=f"{damage}: {_on_one_line(error)}"))

    def _batch_rows(self) -> int:
        """Rows of about `TARGET_BATCH_BYTES`, by the mean size of rows here."""
        return max(1, min(_BATCH_ROWS, self.num_rows * TARGET_BATCH_BYTES // max(1, self.num_bytes)))


def _columns_to_read(schema: pa.Schema, fields: FieldNames) -> list[str]:
    wanted = [fields.text, fields.id, *fields.keep]
    return [name for name in wanted if name in schema.names or name.split(".")[0] in schema.names]


def _documents(batch: pa.RecordBatch, row: int, fields: FieldNames) -> ReadBatch:
    """A batch of rows as documents; those without text are rejected."""
    places = np.arange(row, row + batch.num_rows, dtype=np.uint64)
    texts, problem = _texts(batch, fields.text)
    ids = _strings(_column(batch, fields.id), batch.num_rows)
    extra = {name: _kept(_column(batch, name), batch.num_rows) for name in fields.keep}
    rejected: tuple[Rejected, ...] = ()
    if texts.null_count:
        there = texts.is_valid()
        mask = there.to_numpy(zero_copy_only=False)
        rejected = tuple(Rejected(place=int(place), error=problem) for place in places[~mask])
        places, texts, ids = places[mask], texts.filter(there), ids.filter(there)
        extra = {name: column.filter(there) for name, column in extra.items()}
    return ReadBatch(places=places, texts=texts, ids=ids, extra=extra, rejected=rejected, input_bytes=texts.nbytes)


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """The column of a field; None where there is none, or several of one name."""
    first, *rest = [name] if name in batch.schema.names else name.split(".")
    at = batch.schema.get_field_index(first)
    if at < 0:
        return None
    column = batch.column(at)
    for part in rest:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(part) < 0:
            return None
        column = column.flatten()[column.type.get_field_index(part)]  # null where the struct is
    return column


def _texts(batch: pa.RecordBatch, name: str) -> tuple[pa.Array, str]:
    """The texts, null where there is none, and why there is none."""
    column = _column(batch, name)
    if column is None:
        found = "comes twice in the file" if name in batch.schema.names else "is not in the file"
        return pa.nulls(batch.num_rows, pa.large_string()), f"field '{name}' {found}; expected a column of strings"
    column = _plain(column)
    if not _is_text(column.type):
        return pa.nulls(len(column), pa.large_string()), f"field '{name}' is {column.type}; expected a column of strings"
    return _decoded(column), f"field '{name}' is null or invalid UTF-8; expected UTF-8 text"


def _strings(column: Any, num_rows: int) -> pa.Array:
    """Ids of any type as strings, null where there is none. Each is a function of its own value alone."""
    if column is None:
        return pa.nulls(num_rows, pa.large_string())
    if isinstance(column.type, pa.UuidType):
        return _as_python_shows(column)
    column = _plain(column)
    if _is_text(column.type):
        return _decoded(column)
    try:
        return column.cast(pa.large_string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # lists, structs; times of a zone unknown here
        return _as_python_shows(column)


def _as_python_shows(column: Any) -> pa.Array:
    return pa.array([_shown(value) for value in column], pa.large_string())


def _shown(value: pa.Scalar) -> str | None:
    try:
        return str(value.as_py()) if value.is_valid else None
    except _NO_VALUE:
        return None


def _kept(column: Any, num_rows: int) -> pa.Array:
    if column is None or pa.types.is_null(column.type):
        return pa.nulls(num_rows, pa.large_string())
    column = _plain(column)
    return column if not _is_text(column.type) or _is_binary(column.type) else _decoded(column)


def _plain(column: Any) -> Any:
    """The values themselves, without the dictionary or the extension around them."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    """Whether values are strings, or bytes that may be UTF-8."""
    return _is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_binary(kind: pa.DataType) -> bool:
    fixed, view = pa.types.is_fixed_size_binary(kind), pa.types.is_binary_view(kind)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or fixed or view


def _decoded(column: pa.Array) -> pa.Array:
    """Strings or bytes as large strings, null where not valid UTF-8 (which Arrow does not check when it reads strings)."""
    content = as_large_string(column) if pa.types.is_string_view(column.type) else column
    content = content.cast(pa.large_binary())
    try:
        return content.cast(pa.large_string())
    except pa.ArrowInvalid:  # value by value only where not all are valid
        return pa.array([_utf8_or_none(value) for value in content.to_pylist()], pa.large_string())


def _utf8_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _nothing(rejected: Rejected) -> ReadBatch:
    nothing = pa.array([], pa.large_string())
    return ReadBatch(places=np.zeros(0, np.uint64), texts=nothing, ids=nothing, rejected=(rejected,))


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split())
