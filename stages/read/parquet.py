"""Parquet: one row, one document, read by row groups.

    footer ─▶ row groups of this split ─▶ the needed columns, batch by batch ─▶ documents (`_parquet_columns.py`)

Memory is one batch, of about `TARGET_BATCH_BYTES` by the sizes in the footer, and the pages it is read from.

A damaged row group loses the rows from the damage on and nothing else, however row groups are grouped into splits. The number
of lost rows may be unknown, so they count as one reject.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.errors import DamagedInputError, DatapipeError, UserError
from datapipe.stage import FieldNames, FieldsSeen, InputFile, OpenInput, ReadBatch, Reader, Split
from datapipe.stage.documents import TARGET_BATCH_BYTES
from stages.read._damaged_columns import BROKEN, WatchedStream, damaged, on_one_line, unreadable
from stages.read._parquet_columns import columns_to_read, documents, field_names, has_field, parts

_LOCAL_READ_BYTES = 1 << 20
"""The size of a read from a local file. The speed is 1.04 times that of a mapped file for zstd and 0.88 times for uncompressed
columns; with reads of whole column chunks 0.92 and 0.83 times (90 MB of text, November 2026)."""


class Parquet(Reader):
    """Reads Parquet files of one document a row.

    The text must be a string, or binary UTF-8. Ids of any simple type become strings; fields under `keep:` keep their types,
    strings as large strings.
    """

    extensions: ClassVar[tuple[str, ...]] = (".parquet", ".pq")
    libraries: ClassVar[tuple[str, ...]] = ("pyarrow",)

    def probe(self, file: InputFile, open_input: OpenInput) -> InputFile:
        """Rows and bytes of each row group, and the schema. Raises DamagedInputError if the footer cannot be read, which `read`
        rejects."""
        if file.compression is not None:
            raise UserError(
                f"{file.url}: Parquet inside {file.compression} cannot be read by row groups. "
                "Decompress the file; Parquet itself compresses."
            )
        with open_input(file.url) as stream:
            watched = WatchedStream(stream)
            try:
                opened = _opened(watched)
                return replace(file, row_groups=_row_groups(opened), schema=opened.schema_arrow.remove_metadata())
            except BROKEN as error:
                watched.raise_storage_error(error)
                raise DamagedInputError(unreadable("Parquet file", error, stream)) from error

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Runs of row groups of about `target_bytes` of uncompressed columns."""
        splits: list[Split] = []
        start = size = 0
        for number, (_, num_bytes) in enumerate(file.row_groups):
            size += num_bytes
            if size >= target_bytes:
                splits.append(Split(file=file, start=start, stop=number + 1))
                start, size = number + 1, 0
        if start < len(file.row_groups) or not splits:
            splits.append(Split(file=file, start=start, stop=len(file.row_groups) if file.row_groups else None))
        return splits

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        planned = split.file.row_groups
        row = sum(num_rows for num_rows, _ in planned[: split.start])
        with open_input(split.file.url) as stream:
            watched = WatchedStream(stream)
            try:
                file = _opened(watched)
                names = columns_to_read(file.schema_arrow, fields)
                row_groups = _row_groups(file)
                if repeated := repeated_columns(file, watched, names):
                    file = _opened(watched, repeated)
            except BROKEN as error:
                watched.raise_storage_error(error)
                yield damaged(row, unreadable("Parquet file", error, stream))
                return
            if row_groups != planned:
                raise DatapipeError(
                    f"{split.file.url}: its row groups differ from those that were planned. Run again to plan anew."
                )
            for number in range(split.start, len(planned) if split.stop is None else split.stop):
                group = _RowGroup(number=number, first_row=row, num_rows=planned[number][0], num_bytes=planned[number][1])
                yield from group.read(file, names, fields, watched)
                row += group.num_rows

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """The fields of the schema; no row is read. Nothing for a file whose footer cannot be read, which `read` rejects."""
        with open_input(split.file.url) as stream:
            watched = WatchedStream(stream)
            try:
                file = _opened(watched)
                schema, num_rows = file.schema_arrow, file.metadata.num_rows
            except BROKEN as error:
                watched.raise_storage_error(error)
                return FieldsSeen()
        found = (name for name in (fields.text, *fields.keep) if has_field(schema, name))
        return FieldsSeen(num_records=num_rows, found=frozenset(found), names=tuple(field_names(schema)))


def _opened(watched: WatchedStream, as_dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Opens the file. A local column chunk is read in parts, one of an object store in one request.

    Args:
        as_dictionaries: columns whose values come as dictionaries, not decoded.
    """
    source: Any = pa.PythonFile(watched, mode="r")
    buffer_bytes = _LOCAL_READ_BYTES if isinstance(watched.stream, pa.OSFile) else 0
    return pq.ParquetFile(source, page_checksum_verification=True, buffer_size=buffer_bytes, read_dictionary=as_dictionaries)


def _row_groups(file: pq.ParquetFile) -> tuple[tuple[int, int], ...]:
    """Rows and bytes of each row group. Raises one of `BROKEN` for a damaged footer, also where a row group has lost rows."""
    _ = file.schema_arrow  # taken from the footer on first use
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    row_groups = tuple((group.num_rows, group.total_byte_size) for group in groups)
    if (num_rows := sum(num_rows for num_rows, _ in row_groups)) != file.metadata.num_rows:
        raise ValueError(f"the footer has {file.metadata.num_rows} rows, and its row groups have {num_rows}")
    return row_groups


@dataclass(frozen=True, kw_only=True, slots=True)
class _RowGroup:
    """One row group, whose first row is row `first_row` of the file."""

    number: int
    first_row: int
    num_rows: int
    num_bytes: int

    def read(self, file: pq.ParquetFile, names: list[str], fields: FieldNames, watched: WatchedStream) -> Iterator[ReadBatch]:
        """The documents of the row group, and one reject for all rows from the damage on."""
        row, stop = self.first_row, self.first_row + self.num_rows
        try:
            for batch in file.iter_batches(self._batch_rows(), [self.number], names, use_threads=False):
                for start, part in parts(batch):
                    yield documents(part, row + start, fields)
                row += batch.num_rows
            if row < stop:  # of more rows pyarrow reads as many as the footer has
                raise ValueError(f"fewer rows than the {self.num_rows} of the footer")
        except BROKEN as error:
            watched.raise_storage_error(error)
            damage = f"row group {self.number} of the Parquet file is damaged from row {row} on"
            yield damaged(row, f"{damage}: {on_one_line(error)}")

    def _batch_rows(self) -> int:
        """The rows of about `TARGET_BATCH_BYTES`, by the mean size of a row."""
        return max(1, min(BATCH_ROWS, self.num_rows * TARGET_BATCH_BYTES // max(1, self.num_bytes)))


BATCH_ROWS = 8192
"""Most rows of a batch."""

_MOST_DECODED_BYTES = 256 << 20
"""Bytes that a batch of a column may have at the very most before it is looked at more closely."""

_INDEX_BYTES = 4
"""Most bytes of the number of an entry."""

_PAGE_HEAD_BYTES, _THRIFT_I32 = 64, 0x15


def repeated_columns(file: pq.ParquetFile, watched: WatchedStream, names: Sequence[str]) -> list[str]:
    """The columns of texts of which a row group holds nothing but a dictionary and numbers of its entries, and so many rows
    that the texts may take far more memory than the file tells. Others decode to about the sizes in the footer."""
    metadata = file.metadata
    columns = [number for number in range(metadata.num_columns) if metadata.schema.column(number).path in names]
    groups = _readable_groups(file, watched, names) if columns else []
    return [
        metadata.schema.column(number).path
        for number in columns
        if any(_is_repeated(metadata.row_group(group).column(number), watched) for group in groups)
    ]


def _readable_groups(file: pq.ParquetFile, watched: WatchedStream, names: Sequence[str]) -> list[int]:
    """The row groups whose chunks of these columns the footer describes without damage."""
    groups = list(range(file.metadata.num_row_groups))
    if _is_readable(file, watched, names, groups):
        return groups
    return [group for group in groups if _is_readable(file, watched, names, [group])]


def _is_readable(file: pq.ParquetFile, watched: WatchedStream, names: Sequence[str], groups: list[int]) -> bool:
    """Whether pyarrow can plan the reading of these row groups: it then asks for the first chunk, which is refused."""
    refusing = _RefusingStream(watched)
    planning = pq.ParquetFile(pa.PythonFile(refusing, mode="r"), metadata=file.metadata, pre_buffer=True)
    try:
        next(planning.iter_batches(1, groups, list(names), use_threads=False), None)
    except BROKEN:
        return refusing.was_read
    return True


class _RefusingStream(WatchedStream):
    """A file of the same size whose content nobody gets."""

    def __init__(self, watched: WatchedStream) -> None:
        super().__init__(watched.stream)
        self.was_read = False

    def read(self, num_bytes: int = -1) -> bytes:
        self.was_read = True
        raise OSError("the footer alone is checked")


def _is_repeated(chunk: pq.ColumnChunkMetaData, watched: WatchedStream) -> bool:
    offset = chunk.dictionary_page_offset
    if chunk.physical_type != "BYTE_ARRAY" or offset is None:
        return False
    if min(chunk.num_values, BATCH_ROWS) * chunk.total_uncompressed_size <= _MOST_DECODED_BYTES:
        return False
    watched.seek(offset)
    others = chunk.total_uncompressed_size - _page_bytes(watched.read(_PAGE_HEAD_BYTES))
    return others <= _INDEX_BYTES * chunk.num_values + _PAGE_HEAD_BYTES * BATCH_ROWS


def _page_bytes(head: bytes) -> int:
    """The decompressed size of a page, the second number of its head in Thrift's compact protocol; 0 where it has none."""
    numbers: list[int] = []
    position = 0
    while len(numbers) < 2 and position < len(head) and head[position] == _THRIFT_I32:
        value, shift, position = 0, 0, position + 1
        while position < len(head):
            value |= (head[position] & 127) << shift
            shift, position = shift + 7, position + 1
            if head[position - 1] < 128:
                break
        numbers.append((value >> 1) ^ -(value & 1))
    return numbers[1] if len(numbers) == 2 else 0
