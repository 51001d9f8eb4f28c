"""Reads files of documents that a run wrote: batch by batch, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq

from datapipe.columns import as_large_string, text_lengths
from datapipe.shards.documents.writer import DocumentFormat
from datapipe.storage import Root

_CHUNK_BYTES = 1 << 20


def parquet_batches(root: Root, path: str, names: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The row groups of a Parquet file, one in memory at a time.

    Args:
        names: only these columns; None: all.
    """
    with root.filesystem.open_input_file(root.path(path)) as stream, closing(pq.ParquetFile(stream)) as file:
        for number in range(file.num_row_groups):
            yield from file.read_row_group(number, columns=names, use_threads=False).combine_chunks().to_batches()


def json_chunks(root: Root, path: str) -> Iterator[bytes]:
    """The bytes of a file of JSON lines, decompressed, a MiB at a time."""
    with root.filesystem.open_input_file(root.path(path)) as stream, pa.CompressedInputStream(stream, "zstd") as lines:
        while chunk := lines.read(_CHUNK_BYTES):
            yield chunk


def count_documents(root: Root, path: str, format: DocumentFormat) -> tuple[int, int | None]:
    """How many documents a file has, and the bytes of their texts; None where counting them means parsing JSON."""
    if format == "jsonl.zst":
        return sum(chunk.count(b"\n") for chunk in json_chunks(root, path)), None
    num_docs = num_bytes = 0
    for batch in parquet_batches(root, path, ["text"]):
        num_docs += batch.num_rows
        num_bytes += int(text_lengths(as_large_string(batch.column("text"))).sum())
    return num_docs, num_bytes
