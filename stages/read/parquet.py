"""Parquet: one row, one document, read by row groups.

Memory is one batch, of about `TARGET_BATCH_BYTES` by the sizes in the footer, and the pages it is read from. A damaged row
group loses its rows from the damage on. They count as one reject, because their number may be unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.stage import FieldNames, ReadBatch
from datapipe.stage.documents import TARGET_BATCH_BYTES
from stages.read._column_files import BATCH_ROWS, BROKEN, ColumnReader, OpenedFile, WatchedStream
from stages.read._parquet_columns import columns_to_read, parts, sampled_documents

_LOCAL_READ_BYTES = 1 << 20
"""The size of a read from a local file. The speed is 1.04 times that of a mapped file for zstd and 0.88 times for uncompressed
columns; with reads of whole column chunks 0.92 and 0.83 times (90 MB of text, November 2026)."""

_MOST_DECODED_BYTES = 256 << 20
"""Bytes that a batch of a column may have at the very most before it is measured more closely."""

_INDEX_BYTES, _PAGE_BYTES = 4, 64
"""Most bytes of the number of an entry of a dictionary, and of the head of a page."""


class Parquet(ColumnReader):
    """Reads Parquet files with one document per row.

    The text must be a string, or binary UTF-8. Ids of any simple type become strings; fields under
    `keep:` keep their types, strings as large strings.
    """

    extensions: ClassVar[tuple[str, ...]] = (".parquet", ".pq")
    format_name: ClassVar[str] = "Parquet"
    row_group_name: ClassVar[str] = "row group"

    def opened(self, stream: pa.NativeFile) -> _Opened:
        return _Opened(stream)


class _Opened(OpenedFile):
    def __init__(self, stream: pa.NativeFile) -> None:
        """Raises ValueError for a damaged footer, also where row groups have lost rows."""
        self._watched = WatchedStream(stream)
        self._all_readable: bool | None = None
        with self._watched.noting_damage():
            self._file = _parquet_file(self._watched)
            self.schema = self._file.schema_arrow
            groups = [self._file.metadata.row_group(number) for number in range(self._file.metadata.num_row_groups)]
            self.row_groups = tuple((group.num_rows, group.total_byte_size) for group in groups)
        if (num_rows := sum(num_rows for num_rows, _ in self.row_groups)) != self._file.metadata.num_rows:
            raise ValueError(f"the footer has {self._file.metadata.num_rows} rows, and its row groups have {num_rows}")

    def read(self, number: int, row: int, fields: FieldNames) -> Iterator[ReadBatch]:
        num_rows, num_bytes = self.row_groups[number]
        batch_rows = max(1, min(BATCH_ROWS, num_rows * TARGET_BATCH_BYTES // max(1, num_bytes)))
        names, stop = columns_to_read(self.schema, fields), row + num_rows
        with self._watched.noting_damage():
            file = self._file
            if self._all_readable is None:
                self._all_readable = self._is_readable(range(len(self.row_groups)), names)
            is_readable = self._all_readable or self._is_readable([number], names)
            if is_readable and (repeated := self._checked_columns(number, names)):
                file = _parquet_file(self._watched, repeated, self._file.metadata)
            for batch in file.iter_batches(batch_rows, [number], names, use_threads=False):
                for start, part in parts(batch):
                    yield sampled_documents(part, row + start, fields)
                row += batch.num_rows
        if row < stop:
            raise ValueError(f"fewer rows than the {num_rows} of the footer")

    def _is_readable(self, numbers: Sequence[int], names: list[str]) -> bool:
        """Whether pyarrow can plan the reading of row groups: it then asks for the first chunk,
        which is refused. Otherwise the process would end when pyarrow describes a column."""
        refusing = _RefusingStream(self._watched.stream)
        planning = pq.ParquetFile(pa.PythonFile(refusing, mode="r"), metadata=self._file.metadata, pre_buffer=True)
        try:
            next(planning.iter_batches(1, list(numbers), names, use_threads=False), None)
        except BROKEN:
            return refusing.was_read
        return True

    def _checked_columns(self, number: int, names: list[str]) -> list[str]:
        """The columns of texts that may take far more memory than the file declares: nothing but a dictionary and numbers of
        its entries. Raises ValueError where a column has another number of values than the row group has rows."""
        metadata, repeated = self._file.metadata, []
        for column in range(metadata.num_columns):
            described, chunk = metadata.schema.column(column), metadata.row_group(number).column(column)
            if described.path.split(".")[0] not in {name.split(".")[0] for name in names}:
                continue
            num_rows = self.row_groups[number][0]
            if not described.max_repetition_level and chunk.num_values != num_rows:
                raise ValueError(f"{chunk.num_values} values of '{described.path}', and the footer has {num_rows} rows")
            if described.path in names and _is_repeated(chunk):
                repeated.append(described.path)
        return repeated


def _parquet_file(
    watched: WatchedStream, as_dictionaries: Sequence[str] = (), metadata: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """A local column chunk is read in parts, one of an object store in one request."""
    source: Any = pa.PythonFile(watched, mode="r")
    buffer_bytes = _LOCAL_READ_BYTES if isinstance(watched.stream, pa.OSFile) else 0
    options: Any = {"metadata": metadata, "buffer_size": buffer_bytes, "read_dictionary": as_dictionaries}
    return pq.ParquetFile(source, page_checksum_verification=True, **options)


class _RefusingStream(WatchedStream):
    was_read = False

    def read(self, num_bytes: int = -1) -> bytes:
        self.was_read = True
        raise OSError("the footer alone is checked")


def _is_repeated(chunk: pq.ColumnChunkMetaData) -> bool:
    offset = chunk.dictionary_page_offset
    if chunk.physical_type != "BYTE_ARRAY" or offset is None:
        return False
    if min(chunk.num_values, BATCH_ROWS) * chunk.total_uncompressed_size <= _MOST_DECODED_BYTES:
        return False
    others = chunk.total_compressed_size - (chunk.data_page_offset - offset)
    return others <= _INDEX_BYTES * chunk.num_values + _PAGE_BYTES * BATCH_ROWS
