"""The column chunks of a Parquet file, by the footer: which of them may decode to far more than they take in the file.

The footer describes each chunk by itself, and pyarrow ends the process by SIGABRT when `RowGroupMetaData.column` finds that
description damaged (seen with one flipped bit of a size statistic, pyarrow 26, November 2026). Reading of rows raises an error
there. So a chunk is asked for after rows of its row group could be planned, and a row group with a damaged description is left
to the reading of its rows, which rejects it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from stages.read._damaged_columns import BROKEN, WatchedStream

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
